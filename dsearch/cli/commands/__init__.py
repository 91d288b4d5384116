"""The commands, one module a topic."""
