"""What happened: durable events and metrics."""
