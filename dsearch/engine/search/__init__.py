"""Search: from texts to hits, with pagination, attention and gradients."""
