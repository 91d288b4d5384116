"""Worker threads and micro-batches."""
