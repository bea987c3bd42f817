"""A probe's life in its process, which has one at most: put in place, told, taken away."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ws_guard.board import BoardError, open_board
from ws_guard.foreign import Device
from ws_guard.settings import Settings
from ws_guard.sizing import LAYOUTS, OLDEST_SEEN, OPS, XQA_OPS, InputError, Layout, Plan

from .saying import say
from .zone import ZONE_BYTES

if TYPE_CHECKING:
    from ws_guard.contract import Contract

    from .graph_hooks import GraphHooks
    from .instruments import Instruments
    from .parts import Parts
    from .provisions import Provision
    from .recorder import Recorder

_lock = threading.Lock()
_current: Probe | None = None


class Worker(NamedTuple):
    """What a probe is told of its worker: the labels, the plan, and the board (None: as is set).

    With `later` its slot opens once somebody attaches, or at the first native call.
    """

    engine: str
    rank: str
    plan: Plan | None = None
    board: str | None = None
    later: bool = False


def is_installed() -> bool:
    """Whether this process has a probe already, whoever installed it."""
    return _current is not None


def the_probe(settings: Settings, problems: list[str], worker: Worker) -> tuple[Probe, bool]:
    """The probe of this process, and whether it is new: then it is made of the arguments."""
    global _current
    with _lock:
        new = _current is None
        if _current is None:
            _current = Probe(settings, problems, worker)
        return _current, new


class Probe:
    """The probe of this process; `uninstall()` restores everything."""

    def __init__(self, settings: Settings, problems: list[str], worker: Worker) -> None:
        """`problems` are those of the settings."""
        self.settings = settings
        self._parts: Parts | None = None
        self._instruments: list[GraphHooks | Instruments] = []
        self._recorder: Recorder | None = None
        self._problems = problems
        for problem in problems:
            say(problem)
        self._contract: Contract | None = None
        #: What is held of the installed FlashInfer; "" where the probe is switched off.
        self.verdict = ""
        if not settings.enabled:
            return
        # Reading C++ takes modules that an import of the probe need not wait for.
        from .verdict import judge_installation

        self._contract, self.verdict, reason = judge_installation()
        self._say_verdict(reason, worker)
        self._recorder = self._open_recorder(reason, worker)
        if self._contract is not None and self._contract.layout is not None:
            self._enter(self._contract, self._recorder)

    def __repr__(self) -> str:
        if self._recorder is None:
            return "<ws_guard.Probe: off>"
        where = self._recorder.slot.path or f"no board: {self._recorder.slot.problem}"
        return f"<ws_guard.Probe: contract {self.verdict}, {where}>"

    # -- putting in place ---------------------------------------------------------------------

    def _say_verdict(self, reason: str, worker: Worker) -> None:
        if self.verdict == "mismatch":
            # A free-threaded Python is none of a contract's doing.
            known = "; ws-guard verify compares it with what is known" if self._contract else ""
            say(f"the probe stays off: {reason}{known}")
        elif self.verdict == "not_installed" and not worker.later:
            # A plugin also comes into processes that have no use for FlashInfer.
            needed = f"flashinfer-python {OLDEST_SEEN} or newer"
            say(f"{reason}, no call will be seen: install {needed} into this environment")

    def _open_recorder(self, reason: str, worker: Worker) -> Recorder:
        from .recorder import Recorder

        settings, board = self.settings, None
        try:
            directory = worker.board or settings.board
            board = open_board(directory, settings.board_group, settings.trusted_uids)
        except BoardError as error:
            self._problems.append(str(error))
            say(str(error))
        ops = [*OPS.values(), *XQA_OPS.values()]
        # A mismatch records nothing: any layout will do for a recorder that is never asked.
        layout = self.layout or LAYOUTS["C"]
        document = self._first_document(reason, worker)
        return Recorder(board, layout, ops, document, later=worker.later)

    def _first_document(self, reason: str, worker: Worker) -> dict[str, Any]:
        """What the slot says of its worker before anything is known of the engine."""
        plan = worker.plan
        return {
            "engine": worker.engine,
            "rank": worker.rank,
            "expected_workers": None,
            "layout": self.layout.name if self.layout else None,
            "contract": self.verdict,
            "contract_reason": reason,
            "info": {
                "flashinfer_version": self._contract.release if self._contract else "",
                "sizing": self.settings.sizing,
                "on_overflow": self.settings.on_overflow,
            },
            "planned": None if plan is None else [{"workspace": "ws0", **plan._asdict()}],
            "problems": list(self._problems),
        }

    def _enter(self, contract: Contract, recorder: Recorder) -> None:
        # Not where nothing is instrumented: API servers load the plugins of engines too.
        from .graph_hooks import GraphHooks
        from .instruments import Instruments
        from .parts import Parts
        from .split import Splitter

        # Only decode finds each row's offset by itself: see `split`.
        decode = contract.signatures.get(OPS["decode"])
        self._parts = parts = Parts.of(
            recorder,
            self.settings.on_overflow,
            {OPS["decode"]: Splitter(decode)} if decode else {},
            interval=self.settings.zone_interval_seconds,
            report=self.report,
        )
        hooks = GraphHooks(parts.graphs, self.report)
        self._instruments = [hooks, Instruments(contract, recorder, parts, self.report)]
        for instrument in self._instruments:
            instrument.enter()

    # -- what a plugin learns of its engine ---------------------------------------------------

    @property
    def layout(self) -> Layout | None:
        """How the installed launcher carves; None where it is absent or not understood."""
        return self._contract.layout if self._contract is not None else None

    def attach(self, **told: object) -> None:
        """Take this process for a worker: its slot opens, with `told` in its document."""
        if self._recorder is not None:
            self._recorder.attach(**told)

    def describe(self, **told: object) -> None:
        """Change entries of the worker's document; `info` is merged key by key."""
        if self._recorder is not None:
            self._recorder.describe(**told)

    def report(self, problem: str) -> None:
        """Log a line, once, and say it in /health."""
        if problem in self._problems:
            return
        say(problem)
        self._problems.append(problem)
        self.describe(problems=list(self._problems))

    def counter_of_replays(self) -> Callable[[Any], None] | None:
        """What to call with a torch graph whenever it is launched past torch's own `replay`.

        None where the probe is off.
        """
        return None if self._parts is None else self._parts.graphs.counter_of_replays()

    def name_sites(self, site_of: Callable[[int, str], str]) -> None:
        """From now on workspaces are named by `site_of(address, op)`; "" leaves them numbered."""
        if self._recorder is not None:
            self._recorder.site_of = site_of

    def provision(
        self,
        plan: Plan,
        device: Device,
        *,
        workspace_bytes: int | None = None,
        zone_bytes: int = ZONE_BYTES,
    ) -> Provision:
        """`ws_guard.provision`, for this probe."""
        if self._parts is None or self._recorder is None:
            why = "uninstalled" if self._parts is not None else self.verdict or "switched off"
            raise InputError(f"provision needs a probe, nothing is instrumented here ({why})")
        from .provisions import allocate

        made = allocate(plan, device, workspace_bytes, zone_bytes)
        self._parts.provisions.add(made)
        return made

    # -- taking away --------------------------------------------------------------------------

    def uninstall(self) -> None:
        """Restore the identical native functions and the import system, and leave the board."""
        global _current
        with _lock:
            for instrument in reversed(self._instruments):
                instrument.leave()
            self._instruments.clear()
            self.close(keep_evidence=False)
            if _current is self:
                _current = None

    def close(self, *, keep_evidence: bool = True) -> None:
        """Leave the board; native calls go on, unaccounted for.

        An engine that dies of an overflow exits in good order: with `keep_evidence` (at exit) the
        slot of such a worker stays, as that of a dead one.
        """
        recorder, self._recorder = self._recorder, None
        if self._parts is not None:
            self._parts.ticker.stop()
        if recorder is not None:
            recorder.close(keep_evidence=keep_evidence)

    def after_fork(self) -> None:
        """In a forked child: the parent's slot stays the parent's."""
        if self._parts is not None:
            self._parts.ticker.forget()
        if self._recorder is not None:
            self._recorder.forget_slot()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    if _current is not None:
        _current.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
