"""Which calls a deployment can make: bounds of rows and query tokens, heads of the kernel."""

from __future__ import annotations

from collections.abc import Collection

from ws_guard.engines.sites import Site

from .evidence import Evidence
from .readings import Reading
from .shapes import MOST_HEADS, MOST_Q_LEN, Shape

#: Speculation that is not told drafts a few tokens; beyond this nobody does.
_MOST_DRAFTED = 64


def kernel_heads(reading: Reading, evidence: Evidence) -> set[int] | None:
    """Heads that the kernel can see in this deployment; None where the log does not tell."""
    if evidence.kernel_heads is not None:
        return {evidence.kernel_heads}
    return _split(reading, evidence, evidence.heads) if evidence.heads else None


def possible_heads(reading: Reading, evidence: Evidence) -> set[int] | None:
    """The same; where the model's heads are not told those of any model, split over the ranks."""
    known = kernel_heads(reading, evidence)
    return known or _split(reading, evidence, range(1, MOST_HEADS + 1))


def _split(reading: Reading, evidence: Evidence, models: Collection[int]) -> set[int] | None:
    splits = evidence.splits
    if not splits:
        return None
    per_rank = {-(-heads // tp) for heads in models for tp, _ in splits}
    gathered = {-(-heads // tp) * dcp for heads in models for tp, dcp in splits}
    if reading.site is None:
        return per_rank | gathered
    if reading.site.heads == "gathered":
        return gathered
    if reading.site.heads == "padded":
        return {64 if heads <= 64 else max(128, heads) for heads in per_rank}
    return per_rank


def likely_heads(evidence: Evidence) -> set[int]:
    """Head counts that the model's heads lead to under some parallel size."""
    return {
        heads // part
        for heads in evidence.heads
        for part in range(1, heads + 1)
        if heads % part == 0
    }


def within(shape: Shape, reading: Reading, evidence: Evidence) -> Shape | None:
    """The shape with the lengths that the deployment's limits leave; None where none is left."""
    low, high = shape.low, shape.high
    seqs, tokens = _seqs(reading, evidence), evidence.tokens
    site = reading.site
    if reading.entry in ("decode", "dsv4"):
        if site is not None:
            high = min(high, _longest_row(site, evidence))
            if site.batch != "tokens" and seqs is not None and shape.batch > seqs:
                return None
        if tokens is not None:
            # Rows of one length: together they are the tokens of the step.
            most = max(tokens, (seqs or 0) * high) if site and site.batch != "tokens" else tokens
            high = min(high, most // shape.batch)
    else:
        if seqs is not None and shape.batch > seqs:
            return None
        if tokens is not None:
            # Each other row has a token at least.
            high = min(high, tokens - shape.batch + 1)
    return shape._replace(high=high) if low <= high else None


def is_of_step(shape: Shape, reading: Reading, scheduled: Collection[int]) -> bool:
    """Whether a call can be of a failed step; `scheduled` are the tokens of each that failed.

    Rows that are tokens are all of them; requests of a decode step may be padded for a CUDA graph.
    """
    if reading.site is not None and reading.site.batch == "tokens":
        return shape.batch in scheduled
    if reading.entry in ("decode", "dsv4"):
        return True
    return shape.batch + shape.low - 1 <= max(scheduled)


def _seqs(reading: Reading, evidence: Evidence) -> int | None:
    """Requests of a step; an engine that was not told has its default."""
    if evidence.seqs is not None:
        return evidence.seqs
    return reading.release.max_num_seqs if reading.release else None


def _longest_row(site: Site, evidence: Evidence) -> int:
    if site.q_len == "one":
        return 1
    if site.q_len == "step":
        return MOST_Q_LEN
    if evidence.draft_tokens is not None:
        # SGLang counts the verified token among the drafted ones, vLLM does not.
        return 1 + evidence.draft_tokens
    return 1 if evidence.complete else 1 + _MOST_DRAFTED


def planned_rows(reading: Reading, evidence: Evidence) -> int | None:
    """Rows of the worst step that the flags allow; None where they are not told."""
    if reading.entry not in ("decode", "dsv4"):
        return None
    site = reading.site
    if site is None or site.batch == "tokens":
        return evidence.tokens
    return _seqs(reading, evidence) if evidence.seqs or evidence.complete else None
