"""File formats that documents are read from."""
