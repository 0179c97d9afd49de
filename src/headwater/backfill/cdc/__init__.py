"""Filling a table from an external database: its snapshot merged with its change log."""
