"""Exact attention and exact search over large corpora, block by block, on processors and on CUDA."""
