"""The client of an engine in this process."""
