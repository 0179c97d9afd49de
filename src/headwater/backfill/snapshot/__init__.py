"""Filling a new view from live tables: their snapshot at an epoch, then their change logs."""
