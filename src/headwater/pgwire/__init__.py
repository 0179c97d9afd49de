"""The PostgreSQL protocol: bytes to and from clients, and nothing of what they mean."""
