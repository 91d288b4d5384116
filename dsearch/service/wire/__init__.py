"""JSON and problem documents on the wire."""
