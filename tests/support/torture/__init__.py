"""Random faults at random points, and a checker that reads only a journal and the ledger: ``make torture``."""
