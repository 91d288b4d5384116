"""JSON, requests, problem documents and received files."""
