"""Feedback events and the pages they refer to."""
