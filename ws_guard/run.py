"""`ws-guard run -- CMD`: a command with the probe in its workers and the exporter beside it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import postmortem
from .board import BoardError, open_board
from .board.directory import HIDDEN
from .child import Child, held_signals
from .explain.board import explain_troubles
from .explain.text import verdict_lines
from .exporter.events import EventLog
from .exporter.refresh import Refresher, board_refresher
from .exporter.server import Exporter, ServeError
from .invocation import invocation
from .remarks import remark, settle
from .settings import Settings
from .sizing import InputError

_INJECTION = str(Path(__file__).resolve().parent / "injection")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - what is made there is 0700 and has no name to guess


def run(
    command: Sequence[str], settings: Settings, *, private_board: bool, apply: bool = False
) -> int:
    """Run a command to its end; its exit code, 128+n if signal n ended it.

    With `private_board` this run gets a board of its own, else that of the settings. `InputError`
    or `SettingError` comes before the command starts, and leaves nothing behind.
    """
    wanted, lines = recommended_environment(command) if apply else ({}, [])
    with held_signals() as mask, contextlib.ExitStack() as stack:
        stack.callback(settle)
        board = RunBoard(settings, private=private_board)
        stack.callback(board.leave)
        settings = settings._replace(board=board.path)
        refresher, exporter = _exporter(settings)
        exporter.start()
        stack.callback(exporter.stop)
        for line in [*_announcement(exporter, settings), *lines]:
            remark(line)
        environ = injected({**os.environ, **wanted}, settings)
        started_ns = time.time_ns()
        code = _start(command, environ, mask).wait()
        try:
            exporter.stop()
            look_back(refresher, board, started_ns)
        except Exception as error:  # noqa: BLE001 - the command's code goes out whatever happens
            remark(f"ws-guard: no post-mortem: {type(error).__name__}: {error}")
    return code


def recommended_environment(command: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """What `plan -- CMD` says to set for this command, and the lines that tell so.

    `InputError` for a command that is no engine's or sets the variable itself, where the engine's
    release is not known, and where no variable makes the launch fit.
    """
    from .engine_planning import plan_launch
    from .engines import reader, releases
    from .engines.command import parse_command

    parsed = parse_command(command)
    engine = releases.engine_named(parsed.engine)
    if releases.installed_version(engine) is None:
        raise InputError(
            f"--apply: {engine.name} is not installed beside ws-guard, its release is not known: "
            "set what ws-guard plan --engine-version X -- CMD says"
        )
    try:
        launch, notes = reader.read_launch(reader.Asked(), command, os.environ)
        plan = plan_launch(launch, notes=notes).plan
    except InputError as error:
        # What it tells to pass are flags of plan.
        raise InputError(f"--apply asks ws-guard plan, which says: {error}") from None
    if not plan.fits and not plan.env:
        raise InputError(
            "--apply: no variable to set makes this launch fit; ws-guard plan -- CMD says what does"
        )
    for name in plan.env.keys() & parsed.environ.keys():
        raise InputError(f"--apply: the command sets {name} itself: set {plan.env[name]} there")
    lines = [f"--apply sets {name}={value}" for name, value in plan.env.items()]
    return plan.env, lines or ["--apply: nothing to set, this launch fits"]


def injected(environ: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """An environment whose Pythons watch for FlashInfer; all that the user set stays as it is."""
    if not settings.enabled:
        return dict(environ)
    # An empty entry would be the working directory.
    entries = [_INJECTION, path] if (path := environ.get("PYTHONPATH")) else [_INJECTION]
    changes = {"PYTHONPATH": os.pathsep.join(entries), "WS_GUARD_BOARD": settings.board}
    return {**environ, **changes}


class RunBoard:
    """The board of a run: the user's, or a private one that goes with the run unless kept."""

    def __init__(self, settings: Settings, *, private: bool) -> None:
        self.private = private
        self._kept = False
        if private:
            # Slots are mapped: on a disk their pages would be written back for ever.
            place = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK | os.X_OK) else None
            self.path = tempfile.mkdtemp(prefix="ws_guard-run-", dir=place)
        else:
            # Workers may have another working directory.
            self.path = os.path.abspath(settings.board)
            _check_board(settings._replace(board=self.path))

    def keep(self) -> None:
        """Let the board outlive the run."""
        self._kept = True

    def leave(self) -> None:
        """Remove a private board that nobody needs any more."""
        if self.private and not self._kept:
            shutil.rmtree(self.path, ignore_errors=True)


def _check_board(settings: Settings) -> None:
    """`InputError` where the workers of this user would find no board and make none."""
    try:
        board = open_board(settings.board, settings.board_group, settings.trusted_uids)
        there = board.is_there()
    except BoardError as error:
        raise InputError(str(error)) from None
    if not there and board.group is not None:
        raise InputError(f"there is no board {board.path}: make the shared one first")
    nearest = Path(board.path)
    while not there and not os.path.lexists(nearest):
        nearest = nearest.parent
    try:
        # Tried: what root may write to, or a file system takes, no permission tells.
        os.rmdir(tempfile.mkdtemp(prefix=HIDDEN, dir=nearest))
    except OSError as error:
        raise InputError(
            f"board {board.path}: nothing can be made in {nearest}: {error.strerror}; set "
            "WS_GUARD_BOARD, or --board, to a directory in /dev/shm"
        ) from None


def look_back(refresher: Refresher, board: RunBoard, started_ns: int) -> None:
    """Tell what happened to the workers of this run; nothing where nothing happened."""
    # A board may hold slots of other runs as well.
    slots = [one for one in refresher.refresh().slots if one.attached_ns >= started_ns]
    troubles = postmortem.find_troubles(slots)
    alive = sum(one.worker.alive for one in slots)
    if troubles:
        remark(postmortem.text(troubles, verdict_lines(explain_troubles(troubles))))
    if board.private and (troubles or alive):
        board.keep()
        why = f", {alive} of its workers still alive" if alive else ""
        remark(f"ws-guard: board kept{why}: {invocation('status', '--board', board.path)}")


def _exporter(settings: Settings) -> tuple[Refresher, Exporter]:
    """The exporter with its address taken."""
    # Without a standard error nobody is told: `print` would then write to standard output.
    stream = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - open as long as the process
    try:
        refresher = board_refresher(settings, EventLog(stream))
    except BoardError as error:
        raise ServeError(str(error)) from None
    exporter = Exporter(settings, refresher)
    exporter.bind()
    return refresher, exporter


def _announcement(exporter: Exporter, settings: Settings) -> list[str]:
    """Where to look: for people, and for whoever cannot know the port otherwise."""
    chosen_by_system = settings.listen.endswith(":0")
    if chosen_by_system or (sys.stderr is not None and sys.stderr.isatty()):
        return [f"ws-guard exporter on {exporter.url}, board {settings.board}"]
    return []


def _start(command: Sequence[str], environ: Mapping[str, str], mask: set[int]) -> Child:
    try:
        return Child.start(command, environ, mask)
    except OSError as error:
        found = shutil.which(command[0]) or not isinstance(error, FileNotFoundError)
        reason = error.strerror if found else "command not found"
        raise InputError(f"{command[0] or repr('')}: {reason}; {_remedy(command[0])}") from None


def _remedy(word: str) -> str:
    """What to write instead of a first word that is no program."""
    name, is_assignment, _ = word.partition("=")
    if is_assignment and name.isidentifier():
        return f"set {name} before ws-guard run: {word} ws-guard run -- CMD"
    if " " in word:
        return f"write it without the quotes: ws-guard run -- {word}"
    return "name a program behind the --"
