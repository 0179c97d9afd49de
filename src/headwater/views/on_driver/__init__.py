"""Small queries over tables in memory, computed on the driver with Arrow instead of Spark."""
