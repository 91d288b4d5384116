"""Admission control and refusals under overload."""
