"""Sinks into PostgreSQL: rows and progress in one transaction, rows in bulk by COPY."""
