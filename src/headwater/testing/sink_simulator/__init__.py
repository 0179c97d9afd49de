"""Simulates deliveries to a target while engine, ledger and target fail, and checks each row."""
