"""The words: epochs, barriers, vnodes, changes, schemas and records, as frozen values."""
