"""Messages between shards."""
