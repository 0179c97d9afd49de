"""Headwater keeps Spark tables and materialized views in step with operational databases."""
