"""Test your own pipelines the way Headwater tests itself: sources, clocks, crashes, oracles."""
