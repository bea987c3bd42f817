"""The observability pack. What is JSON here is written by `python -m dashboards.write`."""
