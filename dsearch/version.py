"""The version of this package, for whoever must not import what else the package exports."""

__version__ = "0.3.0"
