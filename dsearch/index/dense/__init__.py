"""Dense indexes: FAISS, exact search, kinds, tuning."""
