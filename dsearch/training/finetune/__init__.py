"""Fine-tuning, one module a kind."""
