"""Defects that the tests must find: ``make mutants``."""
