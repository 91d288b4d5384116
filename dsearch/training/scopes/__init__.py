"""Training scopes: head, full."""
