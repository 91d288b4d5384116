"""API keys, and which routes they open."""
