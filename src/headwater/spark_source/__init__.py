"""A Spark data source: tables of a workspace, and their changes, for any Spark session."""
