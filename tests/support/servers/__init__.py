"""The servers that tests start, what stands before them, and what ends them."""
