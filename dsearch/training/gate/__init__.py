"""Gate: held-out comparison of a candidate with the live version."""
