"""Documents: reading, writing, validation, registry."""
