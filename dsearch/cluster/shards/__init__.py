"""Shards and the actors that serve them."""
