"""Upstream logs: where changes come from."""
