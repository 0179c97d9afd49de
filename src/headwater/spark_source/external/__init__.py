"""Spark data sources over external databases: their rows, and their changes, without an engine."""
