"""Where ``lookup`` and ``store`` keep values by key: one class a file, and a line in ``PLACES``.

Each has the methods of ``contract.py``. A store's own clock stamps and judges when a value expires.
"""
