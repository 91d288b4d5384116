"""The current state of a collection, and its caches."""
