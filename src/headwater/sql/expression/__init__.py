"""PostgreSQL's expressions, as Spark SQL texts with the same values."""
