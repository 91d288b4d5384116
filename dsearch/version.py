"""Version of this package, for modules that must not import the rest of the package."""

__version__ = "0.3.0"
