"""What is unsafe in the real settings of queue, mapping and ledger."""
