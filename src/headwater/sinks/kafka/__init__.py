"""Kafka as a target: messages and progress in one transaction of the broker."""
