"""What the exporter knows of a board: the shapes of its JSON answers, and of nothing else.

Frozen dataclasses, since FastAPI turns them into objects of the OpenAPI schema as they are. Sizes
in bytes, batches in rows, times in seconds since the epoch. None is "not known", never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

State = Literal["ok", "warn", "fail", "unknown"]
STATES: tuple[State, ...] = ("ok", "warn", "fail", "unknown")

Basis = Literal["planned", "peak", "last"]
BASES: tuple[Basis, ...] = ("planned", "peak", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What one call needs of a workspace, and how far the workspace reaches for such calls.

    `overflow_threshold_batch` and `margin_batch` are None where nothing limits the batch.
    `recommended_workspace_bytes` and `env` say what to set where that is known and needed.
    """

    need_bytes: int | None
    workspace_bytes: int | None
    margin_bytes: int | None = None
    margin_ratio: float | None = None
    batch: int | None
    overflow_threshold_batch: int | None
    margin_batch: int | None = None
    overrun_batches: tuple[int, int] | None
    slabs: dict[str, int]
    heads: int | None
    q_len: int | None
    lse: bool | None
    recommended_workspace_bytes: int | None
    env: dict[str, str]
    reasons: tuple[str, ...]

    def with_margins(self) -> Numbers:
        """The same with the margins that follow: they always agree with what they are of."""
        margin = ratio = margin_batch = None
        if self.need_bytes is not None and self.workspace_bytes:
            margin = self.workspace_bytes - self.need_bytes
            ratio = margin / self.workspace_bytes
        if self.overflow_threshold_batch is not None and self.batch is not None:
            margin_batch = self.overflow_threshold_batch - self.batch
        return replace(self, margin_bytes=margin, margin_ratio=ratio, margin_batch=margin_batch)

    @property
    def fits(self) -> bool:
        """Whether nothing speaks against it; what is not known does not."""
        margins = (self.margin_bytes, self.margin_batch)
        return not self.reasons and all(margin is None or margin >= 0 for margin in margins)


@dataclass(frozen=True, slots=True)
class Workspace:
    """One workspace of a worker on every basis that is known."""

    workspace: str
    workspace_bytes: int | None
    layout: str | None
    heads: int | None
    planned: Numbers | None
    peak: Numbers | None
    last: Numbers | None
    #: A call was seen whose scratch, at the most that its kernel may write, does not fit.
    overrun_possible: bool

    def on(self, basis: Basis) -> Numbers | None:
        """The numbers on one basis."""
        return {"planned": self.planned, "peak": self.peak, "last": self.last}[basis]

    @property
    def known(self) -> list[tuple[Basis, Numbers]]:
        """Every basis that is known, with its numbers."""
        return [(basis, numbers) for basis in BASES if (numbers := self.on(basis)) is not None]

    @property
    def overflow_threshold_batch(self) -> int | None:
        """The least threshold on any basis; None where nothing limits the batch."""
        thresholds = [numbers.overflow_threshold_batch for _, numbers in self.known]
        return min((batch for batch in thresholds if batch is not None), default=None)


@dataclass(frozen=True, slots=True)
class OpCounts:
    """What happened to one native op: calls by mode, overflows and overruns by action.

    `batch_counts` counts eager and replayed calls by the bucket of `BATCH_BUCKETS` that they fall
    into (the last is beyond them all), `batch_sum` adds their batches up.
    """

    op: str
    calls: dict[str, int]
    overflows: dict[str, int]
    overruns: dict[str, int]
    batch_counts: tuple[int, ...]
    batch_sum: int


#: Upper bounds of the histogram's buckets, in rows.
BATCH_BUCKETS: tuple[int, ...] = tuple(4**power for power in range(9))


@dataclass(frozen=True, slots=True)
class Suspect:
    """A shape of call that was made while a guard zone was destroyed."""

    op: str
    batch: int | None
    heads: int | None
    q_len: int | None
    lse: bool | None


@dataclass(frozen=True, slots=True)
class DestroyedZone:
    """A guard zone behind a provisioned workspace that was overwritten: an overrun.

    It was whole at `since_timestamp_seconds`; `calls` are those made from then to
    `until_timestamp_seconds`, when the damage was found.
    """

    workspace: str
    destroyed_bytes: int | None
    since_timestamp_seconds: float | None
    until_timestamp_seconds: float | None
    calls: tuple[Suspect, ...]


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker of the board.

    `problems` are what the probe could not do, `warnings` ways of using a workspace that are known
    to end badly.
    """

    engine: str
    rank: str
    pid: int
    alive: bool
    expected_workers: int | None
    contract: str
    contract_reason: str
    layout: str | None
    info: dict[str, str]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    destroyed_zones: tuple[DestroyedZone, ...]
    plan_known: bool
    workspaces: tuple[Workspace, ...]
    ops: tuple[OpCounts, ...]
    probe_errors: int
    start_timestamp_seconds: float
    last_call_timestamp_seconds: float | None
    peak_timestamp_seconds: float | None
    last_overflow_timestamp_seconds: float | None
    last_overrun_timestamp_seconds: float | None

    @property
    def identity(self) -> tuple[str, str]:
        """(engine, rank)."""
        return self.engine, self.rank


@dataclass(frozen=True, slots=True)
class Check:
    """One of the seven health checks; only `fail` makes not-ready."""

    name: str
    state: State
    detail: str


@dataclass(frozen=True, slots=True)
class Health:
    """The answer of /health."""

    ready: bool
    checks: list[Check]
    workers: list[Worker]


@dataclass(frozen=True, slots=True)
class Workers:
    """The answer of /api/v1/workers."""

    workers: list[Worker]


@dataclass(frozen=True, slots=True)
class SeenCall:
    """One of a worker's last runs of calls: calls of one shape and outcome in a row.

    `outcome` is eager, captured, replayed, tuning, overflow, overrun, raised or split; each of the
    last four is a single call. `timestamp_seconds` is when the latest call of a run that still
    lasts was made, else its first.

    A `folded` call shares its row of the slot with similar ones: its numbers are those of the
    worst of them, and mean "up to".
    """

    timestamp_seconds: float
    op: str
    workspace: str
    outcome: str
    batch: int
    heads: int
    q_len: int
    lse: bool
    workspace_bytes: int
    need_bytes: int | None
    margin_bytes: int | None
    folded: bool


@dataclass(frozen=True, slots=True)
class Calls:
    """The answer of /api/v1/calls: newest first."""

    engine: str
    rank: str
    calls: list[SeenCall]
