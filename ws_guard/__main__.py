"""`python -m ws_guard` is `ws-guard`."""

from .cli import main

main()
