"""Long-running tasks: queue, processes, results."""
