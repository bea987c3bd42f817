"""Attention in plain double precision, one row at a time."""

from __future__ import annotations

import math

import torch

from .native_steps import SCALE


def attend_one(
    query: torch.Tensor,
    keys: list[torch.Tensor],
    value_dim: int,
    sinks: list[float] | None = None,
) -> tuple[list[torch.Tensor], list[float]]:
    """Attention of one row [heads, dim] in double precision: values and base-2 LSE per head."""
    values, lses = [], []
    for head, vector in enumerate(query.double()):
        scores = [float(vector @ key.double()) * SCALE for key in keys]
        total = sum(math.exp(score) for score in scores)
        if sinks:
            total += math.exp(sinks[head])
        weighted = torch.zeros(value_dim, dtype=torch.float64)
        for score, key in zip(scores, keys, strict=True):
            weighted += math.exp(score) / total * key[:value_dim].double()
        values.append(weighted)
        lses.append(math.log2(total) if total else -math.inf)
    return values, lses
