"""The whole protocol in one process: real engines, a simulated world, a seed."""
