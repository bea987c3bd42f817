"""The release of ws_guard: the one place where it is written."""

__version__ = "0.1.0"
