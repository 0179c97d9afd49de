"""Delivery into plain Parquet, JSON and CSV files: one new file per delivery."""
