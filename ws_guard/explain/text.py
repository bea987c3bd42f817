"""Findings for people: plain text that survives a copy into a ticket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ws_guard.console import typed_line
from ws_guard.units import human_bytes

from .finding import THIS_CALL_ALONE, Finding, Solution

_MOST_SOLUTIONS = 6
_MOST_RANKS = 16
_CONFIDENCE = {
    "exact": "EXACT",
    "consistent": "CONSISTENT (more than one reading)",
    "unsolved": "UNSOLVED",
}
_WORDS = {
    "overflow": "{slab} asked for {size}, {available} available",
    "overrun": "{slab} needed {size}, {available} available",
    "counter": "{slab} is too small: {size} needed, {available} given",
    "locked": "workspace locked: {size} asked for, {available} there",
    "out_of_memory": "no GPU memory for a workspace of {size}, {available} free",
}


def findings_text(findings: list[Finding]) -> str:
    """Every finding, an empty line between them."""
    return "\n\n".join("\n".join(_lines(each)) for each in findings)


def _lines(found: Finding) -> Iterator[str]:
    yield f"{_CONFIDENCE[found.confidence]}: {_what(found)}"
    yield ""
    for name, value in _rows(found):
        yield f"  {name:<22}{value}"
    typed = [typed_line(each) for each in found.set]
    if not typed and found.recommended_workspace_bytes is not None:
        typed = [f"set: workspace {human_bytes(found.recommended_workspace_bytes)}"]
    if THIS_CALL_ALONE in found.notes:
        # Who reads no further than this line must not take it for enough.
        typed = [each.replace("set: ", "set at least: ", 1) for each in typed]
    if typed:
        yield from ("", *(f"  {each}" for each in typed))
    if found.notes:
        yield from ("", *(f"  note: {note}" for note in found.notes))


def _what(found: Finding) -> str:
    return _WORDS[found.kind].format(
        slab="a slab" if found.slab == "?" else found.slab,
        size=_size(found.size),
        available=_size(found.available),
    )


def _rows(found: Finding) -> Iterator[tuple[str, str]]:
    if found.ranks:
        more = len(found.ranks) - _MOST_RANKS
        rest = f" and {more} more" if more > 0 else ""
        yield f"ranks ({len(found.ranks)})", ", ".join(found.ranks[:_MOST_RANKS]) + rest
    for number, solution in enumerate(found.solutions[:_MOST_SOLUTIONS]):
        yield "" if number else "call", _solution(solution)
    if len(found.solutions) > _MOST_SOLUTIONS:
        yield "", f"and {len(found.solutions) - _MOST_SOLUTIONS:,} more (--json lists them)"
    if found.workspace_bytes:
        yield "workspace", " or ".join(map(human_bytes, found.workspace_bytes))
    if found.layouts:
        yield "layout", " or ".join(found.layouts)
    if found.need_bytes is not None:
        yield "need (this call)", human_bytes(found.need_bytes)
    if found.overflow_threshold_batch is not None:
        yield "overflow threshold", f"{found.overflow_threshold_batch:,} rows"


def _solution(solution: Solution) -> str:
    words = f"{solution.num_qo_heads:,} heads"
    if solution.rows is not None:
        words += f" x {solution.rows:,} rows of {solution.head_dim} elements"
        words += f", {solution.tiles:,} tiles of {solution.tile}"
        return f"{words} ({solution.rule})" if solution.rule else words
    if solution.batch_size is not None:
        words += f" x {solution.batch_size:,} rows"
    if solution.max_q_len is None:
        return words
    low, high = solution.lowest_q_len, solution.highest_q_len
    if low is None or low == high:
        plural = "" if solution.max_q_len == 1 else "s"
        return f"{words} x {solution.max_q_len:,} query token{plural}"
    return f"{words} x {low:,} to {high:,} query tokens"


def _size(size: int | None) -> str:
    return "an unknown size" if size is None else human_bytes(size)


def verdict_lines(findings: Iterable[Finding]) -> list[str]:
    """One line for each: how sure, and which call."""
    return [_verdict(each) for each in findings]


def _verdict(found: Finding) -> str:
    call = _solution(found.solutions[0]) if found.solutions else found.slab
    words = [f"{found.confidence}: {call}"]
    if found.layouts:
        words.append(f"layout {' or '.join(found.layouts)}")
    if found.recommended_workspace_bytes is not None:
        least = " at least" if THIS_CALL_ALONE in found.notes else ""
        words.append(f"workspace to set{least} {human_bytes(found.recommended_workspace_bytes)}")
    return ", ".join(words)
