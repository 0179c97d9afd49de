"""Answers about what exists: PostgreSQL's and RisingWave's system tables, without a Spark job."""
