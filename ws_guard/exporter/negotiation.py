"""Which exposition format a scraper gets: of what it accepts, only what we really write."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

Encoder: TypeAlias = Callable[[CollectorRegistry], bytes]

#: "" is an entry that names no version. What else the client library is asked for, it either
#: stumbles over or repeats in the Content-Type without writing it any differently.
_VERSIONS = {
    "application/openmetrics-text": ("", "1.0.0"),
    "text/plain": ("", "0.0.4", "1.0.0"),
}
_ESCAPINGS = ("allow-utf-8", "underscores", "dots", "values")


def encoder(accept: str) -> tuple[Encoder, str]:
    """What writes the metrics, and its Content-Type; text 0.0.4 where nothing else is known."""
    return choose_encoder(",".join(filter(None, map(_known, accept.split(",")))))


def _known(entry: str) -> str:
    """An entry of Accept as far as it is understood; "" for one that is not."""
    kind, *rest = (part.strip() for part in entry.split(";"))
    told: dict[str, str] = {}
    for name, _, value in (part.partition("=") for part in rest):
        told.setdefault(name, value)
    version, escaping = told.get("version", ""), told.get("escaping", "")
    if version not in _VERSIONS.get(kind, ()):
        return ""
    parts = [kind]
    if version:
        parts.append(f"version={version}")
    if escaping in _ESCAPINGS:
        parts.append(f"escaping={escaping}")
    return ";".join(parts)
