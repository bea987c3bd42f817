"""How a worker comes by its probe: by `install()`, an engine's plugin, or for a provision."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ws_guard.foreign import Device
from ws_guard.settings import ON_OVERFLOW_ACTIONS, Settings, read_settings
from ws_guard.sizing import InputError, Plan

from .life import Probe, Worker, the_probe
from .saying import say
from .zone import ZONE_BYTES

if TYPE_CHECKING:
    from .provisions import Provision

_LABEL_LENGTH = 128


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
    settings, problems = _settings(on_overflow)
    if plan is not None and not isinstance(plan, Plan):
        raise InputError(f"plan is what ws_guard.plan() gave, got {type(plan).__name__}")
    if board is not None and not isinstance(board, str):
        raise InputError(f"board is the path of a directory, got {type(board).__name__}")
    worker = Worker(
        engine=_label("0" if engine is None else engine),
        rank=_label(_launched_rank() if rank is None else rank),
        plan=plan,
        board=board,
    )
    probe, is_new = the_probe(settings, problems, worker)
    given = (plan, on_overflow, board, engine, rank)
    if not is_new and any(each is not None for each in given):
        say("already installed, arguments ignored")
    return probe


def stand_by() -> Probe:
    """`install()`, but on the board only once `Probe.attach` is called, or a native op.

    For the plugins of engines: they run in API servers and schedulers too, which are no workers.
    """
    probe, _ = the_probe(*_settings(None), Worker("0", _label(_launched_rank()), later=True))
    return probe


def provision(
    plan: Plan,
    device: Device,
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


def _settings(on_overflow: str | None) -> tuple[Settings, list[str]]:
    settings, problems = read_settings()
    if on_overflow is not None:
        if on_overflow not in ON_OVERFLOW_ACTIONS:
            allowed = ", ".join(ON_OVERFLOW_ACTIONS)
            raise InputError(f"on_overflow is one of {allowed}, got {on_overflow!r}")
        settings = settings._replace(on_overflow=on_overflow)
    return settings, problems


def _launched_rank() -> str:
    """What torchrun and its like say."""
    return os.environ.get("LOCAL_RANK", "0")


def _label(value: object) -> str:
    """A label of a worker; readers take no longer one."""
    return str(value)[:_LABEL_LENGTH]
