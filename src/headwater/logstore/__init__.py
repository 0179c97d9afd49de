"""What is owed to a sink: durable before it is delivered, replayable, truncated afterwards."""
