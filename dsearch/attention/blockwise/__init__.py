"""Exact attention and exact search over large corpora, block by block, on CPU and CUDA."""
