"""Delivery into Delta tables: appended files or one merge, with the epoch as `txn` version."""
