"""What a ledger costs, and how fast it is: `onceward cost` and `onceward bench`.

``prices`` reads a dated list of prices, ``charges`` puts a price on what a store's capability ``costs`` counts, and ``pace`` times
a real ledger.
"""
