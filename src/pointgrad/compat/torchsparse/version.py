"""The version whose interface is provided."""

__version__ = "2.1.0"
