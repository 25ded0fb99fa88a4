"""Sinks that buffer items: keys complete when the flush does."""
