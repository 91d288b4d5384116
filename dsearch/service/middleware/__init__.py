"""Request guards, deadlines, strict JSON bodies."""
