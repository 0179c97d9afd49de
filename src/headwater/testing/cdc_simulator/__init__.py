"""The backfill of tables against a model of their database: real rules, a seed, crashes."""
