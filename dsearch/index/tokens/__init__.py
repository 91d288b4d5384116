"""Token states of documents in few bytes: projected, rounded, pruned; beside a generation and in it."""
