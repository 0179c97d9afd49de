"""Delivery into Iceberg tables: one catalog commit per delivery, with the epoch in it."""
