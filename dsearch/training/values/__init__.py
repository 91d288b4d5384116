"""Learned values of a field: examples, formulas, steps, the decision."""
