"""Queries over tables in memory, computed with Arrow instead of Spark."""
