"""Fine-tuning, one module per kind."""
