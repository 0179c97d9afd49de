"""Numbered upgrades of the stored schema, each one function that later versions never edit."""
