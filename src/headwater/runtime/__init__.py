"""The engine: wires the rooms, owns the event loop and the Spark session."""
