"""A worker's slot over its life: opened, described, left alone by forked children, closed."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ws_guard.board import ACTIONS, MAX_WORKSPACES, OVERFLOW, Board, Shape, Slot, open_slot
from ws_guard.board.format import Header, event_word
from ws_guard.sizing import Layout

from .saying import say

_OBSERVED = ACTIONS.index("observed")
_LOGGED_KINDS = 100
#: Characters that make a log line's kind.
_KIND = 60


class Recorder:
    """Holds the slot of one process and what is said in its document."""

    def __init__(
        self,
        board: Board | None,
        layout: Layout,
        ops: list[str],
        document: Mapping[str, Any],
        *,
        later: bool = False,
    ) -> None:
        """With `later` the slot opens when somebody attaches, or at the first native call."""
        self.layout = layout
        self.lock = threading.RLock()
        #: Called before anything else when `slot` becomes another one: whoever holds addresses in
        #: the old one lets go, of them first of all, and takes up none until it is replaced.
        self.before_new_slot: list[Callable[[], None]] = []
        #: Called whenever `slot` has become another one.
        self.on_new_slot: list[Callable[[], None]] = []
        #: Called after those.
        self.after_new_slot: list[Callable[[], None]] = []
        self._board = board
        self._ops = {op: index for index, op in enumerate(ops)}
        self._document: dict[str, Any] = {**document, "ops": ops, "workspaces": []}
        self._workspaces: dict[tuple[int, str], int] = {}
        #: Asked for the site's name when a workspace is met first: (address, op) -> name or "".
        self.site_of: Callable[[int, str], str] = lambda _address, _op: ""
        self._logged: set[str] = set()
        self._warnings: dict[str, str] = {}
        self._attach_pending = later
        self._closed = False
        self._finalizer: Any = None
        self.slot = Slot.in_memory("nobody has attached yet") if later else self._open_slot()
        atexit.register(self.close)
        self._close_at_multiprocessing_exit()

    def op_number(self, op: str) -> int:
        """The number of an op in the slot."""
        return self._ops[op]

    def op_name(self, number: int) -> str:
        """The op of a number in the slot."""
        names: list[str] = self._document["ops"]
        return names[number]

    def workspace_number(self, address: int, op: str = "") -> int:
        """A workspace's number by first sight of its address; the last stands for `other`.

        Sites that share a buffer are told apart by their names.
        """
        site = self._site_name(address, op)
        number = self._workspaces.get((address, site))
        if number is None:
            number = len(self._workspaces)
            if number >= MAX_WORKSPACES:
                return MAX_WORKSPACES
            self._workspaces[address, site] = number
            names = self._document["workspaces"]
            self.describe(workspaces=[*names, _free_name(site or f"ws{number}", names)])
        return number

    def workspace_name(self, number: int) -> str:
        """What the workspace of a number is called; the last number stands for `other`."""
        names: list[str] = self._document["workspaces"]
        return names[number] if number < len(names) else "other"

    def workspaces_at(self, address: int) -> list[int]:
        """Numbers of the workspaces at an address: one, unless sites share it."""
        return [number for (at, _), number in self._workspaces.items() if at == address]

    def tell(self, shape: Shape) -> dict[str, Any]:
        """A shape, as the document tells it."""
        return {
            "op": self.op_name(shape.op),
            "batch": shape.batch,
            "heads": shape.heads,
            "q_len": shape.q_len,
            "lse": shape.lse,
        }

    def planned(self, number: int) -> dict[str, Any]:
        """The plan of the workspace of a number; empty where none is known."""
        name = self.workspace_name(number)
        plans: list[dict[str, Any]] = self._document.get("planned") or []
        return next((plan for plan in plans if plan.get("workspace") == name), {})

    def _site_name(self, address: int, op: str) -> str:
        try:
            return self.site_of(address, op)
        except Exception as error:  # noqa: BLE001 - an engine that is not as its plugin knows it
            self.warn(f"a workspace's site is not known: {error!r}")
            return ""

    def describe(self, **changes: object) -> None:
        """Change entries of the slot's document; `info` is merged key by key."""
        with self.lock:
            info = changes.get("info")
            if isinstance(info, dict):
                changes["info"] = {**self._document.get("info", {}), **info}
            self._document.update(changes)
            self._publish(self.slot)

    def set_warning(self, key: str, text: str) -> None:
        """Say in /health that something is known to end badly; "" takes it back."""
        with self.lock:
            if text == self._warnings.get(key, ""):
                return
            before = self._warnings.pop(key, "")
            if text:
                self._warnings[key] = text
            else:
                self._logged.discard(before[:_KIND])
            self.warn(text or f"taken back: {before}")
            self.describe(warnings=list(self._warnings.values()))

    def attach(self, **told: object) -> None:
        """Open the slot if it is not open yet, with `told` in its document."""
        with self.lock:
            self.describe(**told)
            self.attach_if_pending()

    def _open_slot(self) -> Slot:
        board = self._board
        slot = Slot.in_memory("no board") if board is None else open_slot(board)
        if slot.problem and board is not None:
            self.warn(f"not observed: {slot.problem}")
        self._publish(slot)
        if board is not None and slot.path is not None:
            # With the reading end, which is loaded for it.
            from ws_guard.board import in_time, remove_dead

            # Once described, so that this worker is never missing from the board.
            identity = self._document.get("engine", ""), self._document.get("rank", "")
            with contextlib.suppress(TimeoutError):
                in_time(lambda: remove_dead(board, *identity, keep=slot.path))
        return slot

    def _publish(self, slot: Slot) -> None:
        try:
            slot.describe(self._document)
        except ValueError as error:
            self.warn(str(error))
        self._look_after(slot)

    def add_row(self, shape: Shape, need_bytes: int) -> tuple[int, int, bool]:
        """`Slot.add_row`, and a look whether anybody can see it."""
        self._look_after(self.slot)
        return self.slot.add_row(shape, need_bytes)

    def _look_after(self, slot: Slot) -> None:
        """Say once that the slot was taken off the board: the worker runs on, unobserved."""
        if slot.is_removed():
            self.warn(f"no longer observed: somebody has removed {slot.path}")

    def forget_slot(self) -> None:
        """In a forked child: the parent's slot stays the parent's.

        Most forked children never make a native call: only the first one opens a slot.
        """
        parents = self.slot
        self.lock = threading.RLock()
        self._attach_pending = not self._closed
        self._replace_slot(Slot.in_memory("forked, no native call yet"))
        parents.drop()

    def attach_if_pending(self) -> None:
        """Open the slot that a forked child, or a process that stands by, has put off."""
        if self._attach_pending:
            self._attach_pending = False
            self._workspaces.clear()
            self._document["workspaces"] = []
            unused = self.slot
            self._replace_slot(self._open_slot())
            unused.drop()
            self._close_at_multiprocessing_exit()

    def _close_at_multiprocessing_exit(self) -> None:
        """A forked multiprocessing child skips atexit, and lost its parent's finalizers."""
        util = sys.modules.get("multiprocessing.util")
        if self._finalizer is not None:
            self._finalizer.cancel()
        if util is not None:
            self._finalizer = util.Finalize(None, self.close, exitpriority=0)

    def close(self, *, keep_evidence: bool = True) -> None:
        """Leave the board; with `keep_evidence` a slot that saw an overflow or overrun stays."""
        atexit.unregister(self.close)
        if self._finalizer is not None:
            self._finalizer.cancel()
        with self.lock:
            if self._closed:
                return
            self._closed, self._attach_pending = True, False
            slot = self.slot
            self._replace_slot(Slot.in_memory("closed"))
            if keep_evidence and slot.saw_trouble():
                slot.drop()
            else:
                slot.close()

    def _replace_slot(self, slot: Slot) -> None:
        for let_go in self.before_new_slot:
            self._try(let_go)
        self.slot = slot
        for rebind in [*self.on_new_slot, *self.after_new_slot]:
            self._try(rebind)

    def _try(self, told: Callable[[], None]) -> None:
        try:
            told()
        except Exception as error:  # noqa: BLE001 - at a fork, or while the engine exits
            self.stumbled(error)

    # -- what went wrong ----------------------------------------------------------------------
    # Called around native calls: whatever happens here, the engine goes on as if we were not there.

    def add_event(self, op: str, kind: int, action: str) -> None:
        """Count an overflow or overrun that was observed, raised or split."""
        self.slot.add_event(self._ops[op], kind, ACTIONS.index(action))

    def native_failed(
        self, op: str, foreseen: bool, error: Exception, *, tuning: bool = False
    ) -> None:
        """A native call raised: right the account where that was not what was foreseen."""
        try:
            with self.lock:
                # The tuner tries what may be refused, and swallows the refusals: no event.
                refused = is_refusal(error) and not tuning
                if refused and not foreseen:
                    self.add_event(op, OVERFLOW, "observed")
                    self.stumbled(f"a refusal was not foreseen: {str(error)[:200]}")
                if foreseen and not refused:
                    self._take_back(op)
        except Exception as ours:  # noqa: BLE001 - the native error is on its way
            self.stumbled(ours)

    def native_passed(self, op: str) -> None:
        """A foreseen refusal did not come: take it back, and say that we were wrong."""
        try:
            with self.lock:
                self._take_back(op)
                self.stumbled(f"a call of {op} was foreseen to be refused and was not")
        except Exception as ours:  # noqa: BLE001 - the native result is on its way
            self.stumbled(ours)

    def _take_back(self, op: str) -> None:
        self.slot.add_event(self._ops[op], OVERFLOW, _OBSERVED, count=-1)
        words = self.slot.words
        if not any(words[event_word(op, OVERFLOW, _OBSERVED)] for op in self._ops.values()):
            words[Header.LAST_OVERFLOW_NS] = 0

    def stumbled(self, what: object) -> None:
        """Count an error of the probe itself; each kind is logged once."""
        with contextlib.suppress(Exception), self.lock:
            # A call that was under way while another thread closed the slot is no error.
            if not self._closed:
                self.slot.add_probe_error()
                text = f"{type(what).__name__}: {what}" if isinstance(what, Exception) else what
                self.warn(str(text))

    def warn(self, text: str) -> None:
        """Log a line, once for each kind."""
        kind = text[:_KIND]
        if kind not in self._logged and len(self._logged) < _LOGGED_KINDS:
            self._logged.add(kind)
            say(text)


def _free_name(name: str, taken: list[str]) -> str:
    """The name, numbered where another buffer has it: an engine may keep one per lane or device."""
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(1)))
    return next(each for each in names if each not in taken)


def is_refusal(error: Exception) -> bool:
    """Whether an error is the launcher's word that the workspace or counter is too small."""
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return (
        "Buffer overflow when allocating memory for" in text and "trtllm_gen" in text
    ) or "multi_ctas_kv_counter_size" in text
