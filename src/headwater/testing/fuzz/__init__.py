"""Random tables, writes and materialized views: at every epoch each view equals its query."""
