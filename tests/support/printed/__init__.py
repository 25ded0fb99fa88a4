"""The pages that people read, and running them."""
