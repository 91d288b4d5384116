"""Training of heads that predict a field of the documents: examples, losses, steps, the decision."""
