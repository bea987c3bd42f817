"""The lines around one that tells only a part of a fault: messages get cut, wrapped and mixed."""

from __future__ import annotations

from collections.abc import Sequence

from .lines import Line, parts_of_lines, unwrap, whole_line
from .wordings import Fault, faults_in

#: Lines of the same origin that are looked at; those of others stand between them.
_LINES_ABOVE, _LINES_BELOW = 12, 12
_OTHERS_BETWEEN = 8


def faults_around(
    line: Line, above: Sequence[str], below: Sequence[str]
) -> tuple[Line, list[Fault]]:
    """The line with all its parts, and the faults of it and of its neighbours of the same origin.

    `above` and `below` are what stands around it in the log, as it stands there.
    """
    parts = [
        *map(unwrap, above[-_OTHERS_BETWEEN * _LINES_ABOVE :]),
        line,
        *map(unwrap, below[: _OTHERS_BETWEEN * _LINES_BELOW]),
    ]
    lines = parts_of_lines(parts)
    at = next(at for at, its in enumerate(lines) if any(part is line for part in its))
    whole = [whole_line(its) for its in lines]
    line = whole[at]
    near = [
        *[each for each in whole[:at] if is_of(each, line)][-_LINES_ABOVE:],
        line,
        *[each for each in whole[at + 1 :] if is_of(each, line)][:_LINES_BELOW],
    ]
    found = list(faults_in("\n".join(each.text for each in near)))
    if found and not any(map(is_cut, found)):
        return line, found
    # A terminal breaks lines in the middle of a word: then nothing belongs between them.
    glued = list(faults_in("".join(each.text for each in near)))
    return line, glued if glued and not any(map(is_cut, glued)) else found


def is_of(each: Line, line: Line) -> bool:
    """Whether a line goes on where another left off: of one origin, or of none."""
    return each.origin == line.origin or (not each.rank and each.source == line.source)


def is_cut(fault: Fault) -> bool:
    """Whether a message tells less than its wording has."""
    if fault.kind == "overflow" and fault.old:
        return False
    return fault.size is None or fault.available is None
