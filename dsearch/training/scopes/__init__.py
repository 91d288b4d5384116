"""Training scopes: head, full, values."""
