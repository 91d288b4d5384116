"""A collection on many machines: shards of a generation, their replicas, and search over them.

Nothing here imports Ray until a cluster is started or joined; splitting and merging work without it.
"""
