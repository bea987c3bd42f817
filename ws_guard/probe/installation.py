"""`install()`: the probe's life in a worker, from attaching a slot to putting everything back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ws_guard.board import Board, BoardError, open_board
from ws_guard.settings import ON_OVERFLOW_ACTIONS, Settings, read_settings
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

_LABEL_LENGTH = 128

_lock = threading.Lock()
_installed: Probe | None = None


def install(
    plan: Plan | None = None,
    on_overflow: str | None = None,
    board: str | None = None,
    engine: str | int | None = None,
    rank: str | int | None = None,
) -> Probe:
    """Attach this process to the board and account for its native trtllm-gen calls.

    Works before flashinfer is imported and after; a second call returns the probe of the first.
    `plan` is what `ws_guard.plan` gave, `board` a directory, `engine` and `rank` the labels of this
    worker (default "0", and LOCAL_RANK or "0"; at most 128 characters). Raises `InputError` for
    arguments that cannot be; nothing else here raises, and nothing imports torch or flashinfer.
    """
    global _installed
    settings, problems = _settings(on_overflow)
    if plan is not None and not isinstance(plan, Plan):
        raise InputError(f"plan is what ws_guard.plan() gave, got {type(plan).__name__}")
    if board is not None and not isinstance(board, str):
        raise InputError(f"board is the path of a directory, got {type(board).__name__}")
    with _lock:
        if _installed is None:
            identity = (
                _label("0" if engine is None else engine),
                _label(os.environ.get("LOCAL_RANK", "0") if rank is None else rank),
            )
            _installed = Probe(settings, problems, plan, board, identity)
        elif any(given is not None for given in (plan, on_overflow, board, engine, rank)):
            say("already installed, arguments ignored")
        return _installed


def is_installed() -> bool:
    """Whether this process has a probe already, whoever installed it."""
    return _installed is not None


def _label(value: object) -> str:
    """A label of a worker; readers take no longer one."""
    return str(value)[:_LABEL_LENGTH]


def stand_by() -> Probe:
    """`install()`, but on the board only once `Probe.attach` is called, or a native op.

    For the plugins of engines: they run in API servers and schedulers too, which are no workers.
    """
    global _installed
    settings, problems = _settings(None)
    with _lock:
        if _installed is None:
            identity = "0", os.environ.get("LOCAL_RANK", "0")
            _installed = Probe(settings, problems, None, None, identity, later=True)
        return _installed


def _settings(on_overflow: str | None) -> tuple[Settings, list[str]]:
    settings, problems = read_settings()
    if on_overflow is not None:
        if on_overflow not in ON_OVERFLOW_ACTIONS:
            allowed = ", ".join(ON_OVERFLOW_ACTIONS)
            raise InputError(f"on_overflow is one of {allowed}, got {on_overflow!r}")
        settings = settings._replace(on_overflow=on_overflow)
    return settings, problems


def provision(
    plan: Plan,
    device: Any,  # noqa: ANN401 - whatever torch.device takes
    *,
    workspace_bytes: int | None = None,
    zone_bytes: int = ZONE_BYTES,
) -> Provision:
    """Allocate the workspace that `plan` asks for on `device`, with a guard zone behind it.

    Call it at start-up, before the first native call or graph capture: it waits for the GPU. The
    workspace is zeroed; `workspace_bytes` is another size than the plan's, `zone_bytes` what is
    painted behind it. The probe, installed if it is not yet, hands it to the first caller whose own
    workspace is smaller, and looks at the zone every WS_GUARD_ZONE_INTERVAL seconds: a destroyed
    one counts as an overrun. Raises `InputError` for what cannot be, torch's errors for memory.
    """
    probe = install()
    return probe.provision(plan, device, workspace_bytes=workspace_bytes, zone_bytes=zone_bytes)


class Probe:
    """The probe of this process; `uninstall()` restores everything."""

    def __init__(
        self,
        settings: Settings,
        problems: list[str],
        plan: Plan | None,
        board: str | None,
        identity: tuple[str, str],
        *,
        later: bool = False,
    ) -> None:
        self.settings = settings
        self._later = later
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

        self._contract, verdict, reason = judge_installation()
        self.verdict = verdict
        if verdict == "mismatch":
            # A free-threaded Python is none of a contract's doing.
            known = "; ws-guard verify compares it with what is known" if self._contract else ""
            say(f"the probe stays off: {reason}{known}")
        elif verdict == "not_installed" and not later:
            # A plugin also comes into processes that have no use for FlashInfer.
            needed = f"flashinfer-python {OLDEST_SEEN} or newer"
            say(f"{reason}, no call will be seen: install {needed} into this environment")
        self._recorder = self._open_recorder(settings, plan, board, identity, verdict, reason)
        if self._contract is not None and self._contract.layout is not None:
            self._enter(self._contract, self._recorder)

    def __repr__(self) -> str:
        if self._recorder is None:
            return "<ws_guard.Probe: off>"
        where = self._recorder.slot.path or f"no board: {self._recorder.slot.problem}"
        return f"<ws_guard.Probe: contract {self.verdict}, {where}>"

    # -- putting in place ---------------------------------------------------------------------

    def _open_recorder(
        self,
        settings: Settings,
        plan: Plan | None,
        board: str | None,
        identity: tuple[str, str],
        verdict: str,
        reason: str,
    ) -> Recorder:
        from .recorder import Recorder

        layout = self._contract.layout if self._contract else None
        release = self._contract.release if self._contract else ""
        engine, rank = identity
        document = {
            "engine": engine,
            "rank": rank,
            "expected_workers": None,
            "layout": layout.name if layout else None,
            "contract": verdict,
            "contract_reason": reason,
            "info": {
                "flashinfer_version": release,
                "sizing": settings.sizing,
                "on_overflow": settings.on_overflow,
            },
            "planned": None if plan is None else [{"workspace": "ws0", **plan._asdict()}],
            "problems": list(self._problems),
        }
        found: Board | None = None
        try:
            found = open_board(board or settings.board, settings.board_group, settings.trusted_uids)
        except BoardError as error:
            document["problems"] = [*self._problems, str(error)]
            say(str(error))
        # A mismatch records nothing: any layout will do for a recorder that is never asked.
        rules = layout or LAYOUTS["C"]
        ops = [*OPS.values(), *XQA_OPS.values()]
        return Recorder(found, rules, ops, document, later=self._later)

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
            report=self._report,
        )
        hooks = GraphHooks(parts.graphs, self._report)
        self._instruments = [hooks, Instruments(contract, recorder, parts, self._report)]
        for instrument in self._instruments:
            instrument.enter()

    def _report(self, problem: str) -> None:
        if problem in self._problems:
            return
        say(problem)
        self._problems.append(problem)
        if self._recorder is not None:
            self._recorder.describe(problems=list(self._problems))

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
        self._report(problem)

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
        device: Any,  # noqa: ANN401 - whatever torch.device takes
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
        global _installed
        with _lock:
            for instrument in reversed(self._instruments):
                instrument.leave()
            self._instruments.clear()
            self.close(keep_evidence=False)
            if _installed is self:
                _installed = None

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
    if _installed is not None:
        _installed.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
