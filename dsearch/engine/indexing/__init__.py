"""From documents to a published generation, and its life cycle."""
