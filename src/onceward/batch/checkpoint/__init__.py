"""Sinks that buffer: keys complete when the flush does."""
