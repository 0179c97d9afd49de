"""Nexmark, the benchmark of an online auction: events from a seed, and queries over them."""
