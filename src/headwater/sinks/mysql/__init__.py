"""Sinks into MySQL and MariaDB: rows and progress in one transaction, rows in bulk by LOAD DATA."""
