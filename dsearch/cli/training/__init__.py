"""`dsearch train`: its options, what it prints, and the kinds of training."""
