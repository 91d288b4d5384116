"""Releases: a generation split into shards, copied between machines."""
