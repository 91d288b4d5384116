"""Training over shards."""
