"""Search over shards."""
