"""HTTP routes, one module a noun."""
