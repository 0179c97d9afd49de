"""What exists: sources and tables, with ids that are never given twice."""
