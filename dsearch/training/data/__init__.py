"""Training data: judgements, clicks, self-supervision."""
