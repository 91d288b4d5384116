"""The training loop, checkpoints, run folders, processes."""
