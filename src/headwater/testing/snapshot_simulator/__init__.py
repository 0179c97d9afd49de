"""Simulates the creation of a view over tables that change, and checks it at every epoch."""
