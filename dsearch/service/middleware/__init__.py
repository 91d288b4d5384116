"""Request guards, deadlines, slow clients, strict JSON bodies."""
