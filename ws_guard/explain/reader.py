"""Reads a log as a stream: finds the faults and the hints in it, whatever its size.

A chunk at a time is searched for a few words; only where one stands is text looked at.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from . import hints as hinting
from .failed_steps import DUMPED, steps_of
from .faults import Faults, Met
from .gathering import Hints
from .hint_words import ANCHORS
from .lines import Line, blanked, unwrap, whole_lines
from .neighbours import faults_around, is_cut, is_of
from .search import Searcher
from .source import Source
from .trace import allocating, engine_in, sites_in
from .wordings import NEEDLES, Fault, faults_in, is_begun

CHUNK = 4 << 20
#: What is looked at around a word; a chunk's last part is searched with the next chunk.
_MARGIN = 32 << 10
#: Hints are looked for in the beginning of a log, around starts of an engine, and around faults.
_HINTED_HEAD = 8 << 20
_HINTED_AROUND = 512 << 10
_MOST_AREAS = 200
#: Of one word within one chunk; a log that is nothing but faults has said it all by then.
_MOST_HITS = 40_000
_MOST_ALIKE = 4_096
_MOST_KINDS = 1 << 14
_MOST_TRACES = 50
_MOST_AROUND = 500
_MOST_DUMPS = 100
_LONGEST_MESSAGE = 4_096
#: journald writes a message with colours as a list of numbers: that of one worker in a log of
#: gigabytes, it may be.
_LISTED = (b'"MESSAGE":[', b'"MESSAGE": [', b'"MESSAGE" : [')
_JOURNAL_KEY = b'"MESSAGE"'
#: Lines that are parts of longer ones (container runtimes, Docker), or spelled out.
_SPLIT_MARKS = dict.fromkeys((b"stderr P ", b"stdout P ", b'"log":', *_LISTED), 1)
#: Docker ends a whole line with a line break, a part without.
_DOCKER_PART = re.compile(rb'(?<!\\n)", ?"stream"')
_TRACE_CHARS = 8_192


class Found(NamedTuple):
    """What a log holds: faults, each once, and hints; `cut`: a line that was to be a fault."""

    faults: list[Met]
    hints: Hints
    cut: bool


class LogReader:
    """Takes in one log."""

    def __init__(self) -> None:
        # A byte more than is ever filled: the searcher ends its part there.
        self._buffer = bytearray(CHUNK + 2 * _MARGIN + 1)
        self._view = memoryview(self._buffer)[:-1]
        self._start = 0  # of the buffer within the log
        self._alike: Counter[bytes] = Counter()
        self._examined = 0  # position in the log up to which words were looked at
        self._faults = Faults()
        self._traces = self._around = self._dumps = 0
        self._hints = Hints()
        self._cut = False
        self._areas = 0
        self._words = dict.fromkeys((*NEEDLES, *ANCHORS), _MOST_HITS)
        self._hinted_to = 0  # position in the log up to which hints were taken

    def read(self, source: Source) -> Found:
        """The whole log."""
        with Searcher(self._buffer) as searcher:
            filled, searched, ended = 0, 0, False
            while not ended:
                filled, ended = self._fill(source, filled)
                if self._start == 0 and _JOURNAL_KEY in self._buffer:
                    self._words |= dict.fromkeys(_LISTED, _MOST_HITS)
                end = filled if ended else max(searched, filled - _MARGIN)
                self._search(searcher, searched, end, filled)
                # Keep a margin before what comes, for the lines that lead to it.
                kept = max(0, end - _MARGIN)
                self._view[: filled - kept] = self._view[kept:filled].tobytes()
                self._start += kept
                filled, searched = filled - kept, end - kept
        self._view.release()
        return Found(self._faults.merged(), self._hints, self._cut)

    def _fill(self, source: Source, filled: int) -> tuple[int, bool]:
        while filled < len(self._view):
            read = source.read_into(self._view[filled:])
            if not read:
                return filled, True
            filled += read
        return filled, False

    # -- words ------------------------------------------------------------------------------------

    def _search(self, searcher: Searcher, start: int, end: int, filled: int) -> None:
        longest = max(map(len, self._words))
        # A word that reaches beyond `end` belongs to this part if it begins before.
        reach = min(filled, end + longest - 1)
        hits = searcher.find(self._words, start, reach)
        if self._start + start < _HINTED_HEAD:
            self._take_hints(searcher, start, min(filled, end + hinting.LONGEST))
        for at, word in hits:
            if at >= end:
                continue
            if word in ANCHORS:
                self._area(searcher, at, filled)
            else:
                self._take_fault(searcher, at, word, filled)

    def _area(self, searcher: Searcher, at: int, filled: int) -> None:
        """Take the hints around a place, those that were not taken yet."""
        if self._areas < _MOST_AREAS:
            start = max(0, at - _HINTED_AROUND, self._hinted_to - self._start)
            end = min(filled, at + _HINTED_AROUND)
            if start < end:
                self._areas += 1
                self._take_hints(searcher, start, end)

    def _take_hints(self, searcher: Searcher, start: int, end: int) -> None:
        self._hinted_to = max(self._hinted_to, self._start + end)
        if self._is_split(searcher, start, end):
            self._take_split_hints(self._text(start, end))
            return
        for at, word in searcher.find(hinting.NEEDLES, start, end):
            low = max(0, at - hinting.BEFORE)
            # One character for a byte: places stay what they are.
            self._hint(self._text(low, at + hinting.BEHIND, "latin-1"), at - low, word)

    def _is_split(self, searcher: Searcher, start: int, end: int) -> bool:
        """Whether lines of this part must be put together first."""
        marks = {word for _, word in searcher.find(_SPLIT_MARKS, start, end)}
        if marks == {b'"log":'}:
            return _DOCKER_PART.search(self._view[start:end]) is not None
        return bool(marks)

    def _take_split_hints(self, raw: str) -> None:
        """The hints of a part whose lines are cut or spelled out: put together first."""
        text = "\n".join(each.text for each in whole_lines(map(unwrap, raw.split("\n"))))
        found = (
            (at, word)
            for word, most in hinting.NEEDLES.items()
            for at in islice(_places(text, word.decode()), most)
        )
        for at, word in sorted(found):
            low = max(0, at - hinting.BEFORE)
            self._hint(text[low : at + hinting.BEHIND], at - low, word)

    def _hint(self, text: str, at: int, word: bytes) -> None:
        if "\x1b" in text:
            text = blanked(text)
        for hint in hinting.hints_at(text, at, word):
            self._hints.add(hint)

    def _text(self, start: int, end: int, encoding: str = "utf-8") -> str:
        return str(self._view[max(0, start) : end], encoding, "replace")

    # -- faults -----------------------------------------------------------------------------------

    def _is_worn(self, at: int) -> bool:
        """Whether what stands here was seen so often that it tells nothing new."""
        alike = bytes(self._view[max(0, at - 96) : at + 48])
        if len(self._alike) >= _MOST_KINDS:
            self._alike.clear()
        self._alike[alike] += 1
        return self._alike[alike] > _MOST_ALIKE

    def _take_fault(self, searcher: Searcher, at: int, word: bytes, filled: int) -> None:
        if self._start + at < self._examined or (word not in _LISTED and self._is_worn(at)):
            return
        start = self._buffer.rfind(b"\n", max(0, at - _MARGIN), at) + 1 or max(0, at - _MARGIN)
        end = self._buffer.find(b"\n", at, min(filled, at + _MARGIN))
        if end < 0:
            # An endless line: what begins near the end of this part is looked at again.
            end = min(filled, at + _MARGIN)
            self._examined = self._start + max(at + 1, end - _LONGEST_MESSAGE)
        else:
            self._examined = self._start + end
        line = unwrap(self._text(start, end))
        found = list(faults_in(line.text))
        if not found or any(map(is_cut, found)):
            line, around = self._faults_around(line, start, end, filled)
            found = around or found
        for fault in found:
            self._keep(fault, line, start, min(end + 1, filled), filled)
        if found:
            self._area(searcher, at, filled)
        elif is_begun(line.text):
            self._cut = True

    def _faults_around(
        self, line: Line, start: int, end: int, filled: int
    ) -> tuple[Line, list[Fault]]:
        """The line as a whole, and its faults where they reach into the lines around it."""
        self._around += 1
        if self._around > _MOST_AROUND:
            return line, []
        above = self._text(max(0, start - _MARGIN), max(0, start - 1)).split("\n")
        below = self._text(min(end + 1, filled), min(end + 1 + _MARGIN, filled)).split("\n")
        return faults_around(line, above, below)

    def _keep(self, fault: Fault, line: Line, start: int, behind: int, filled: int) -> None:
        if not self._faults.has_room_for(fault):
            return
        trace = ""
        if self._traces < _MOST_TRACES:
            self._traces += 1
            trace = self._text(max(0, start - _TRACE_CHARS), start)
        if fault.kind == "out_of_memory":
            above = [each.text for each in map(unwrap, trace.split("\n")) if is_of(each, line)]
            fault = fault._replace(caller=allocating(above))
        steps = self._steps_around(fault, line, start, behind, filled)
        self._faults.add(fault, line.origin, sites_in(trace), engine_in(trace), steps)

    def _steps_around(
        self, fault: Fault, line: Line, start: int, behind: int, filled: int
    ) -> list[int]:
        """The steps that belong to a fault, of those that were put down near its line."""
        low, high = max(0, start - _MARGIN), min(filled, behind + _MARGIN)
        if fault.kind != "overflow" or self._buffer.find(DUMPED, low, high) < 0:
            return []
        self._dumps += 1
        if self._dumps > _MOST_DUMPS:
            return []
        above, below = (
            whole_lines(map(unwrap, self._text(*part).split("\n")))
            for part in ((low, start), (behind, high))
        )
        return list(steps_of(fault, line, above, below))


def _places(text: str, word: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)
