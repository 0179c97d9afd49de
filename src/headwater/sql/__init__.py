"""SQL in the PostgreSQL/RisingWave dialect: statements, names, types, and a relational algebra."""
