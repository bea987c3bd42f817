"""The main question before a launch: can this deployment overflow, and what to set?"""

from __future__ import annotations

from typing import NamedTuple

from .call import MAX_SM_COUNT, Call, HeadDims
from .carving import need
from .errors import INT32_MAX, InputError, whole
from .layouts import DEFAULT_WORKSPACE_BYTES, GRID_LIMIT_BATCH, Layout, Slab
from .limits import overflow_threshold_batch, overrun_batches, worst_need_bytes
from .slabs import ceil_div

_MAX_PARALLEL = 1 << 20


class Deployment(NamedTuple):
    """What decides the workspace's need: the model's heads and how they are spread.

    heads: query heads of the model; tp, dcp, pcp, dp: parallel sizes; max_num_batched_tokens:
    tokens of a step; max_num_seqs: requests of a step; max_q_len: query tokens per row.
    """

    heads: int
    tp: int = 1
    dcp: int = 1
    pcp: int = 1
    dp: int = 1
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_q_len: int = 1
    workspace_bytes: int = DEFAULT_WORKSPACE_BYTES
    sm_count: int = 148
    dims: HeadDims | None = None

    @property
    def kernel_heads(self) -> int:
        """Heads that the kernel sees: under DCP each rank gathers its group's queries."""
        return ceil_div(self.heads, self.tp) * self.dcp

    @property
    def planned_batch(self) -> int:
        """Rows of the worst step: sparse MLA hands every token of it over as a row of its own."""
        batch = self.max_num_batched_tokens or self.max_num_seqs
        assert batch is not None, "checked() was not called"  # noqa: S101 - for type checkers
        return batch

    @property
    def lse(self) -> bool:
        """DCP merges partial results by their log-sum-exp; without it nobody asks for one."""
        return self.dcp > 1

    @property
    def worst_call(self) -> Call:
        """The native call of the worst step that this deployment allows."""
        return Call(
            entry="decode",
            heads=self.kernel_heads,
            batch=self.planned_batch,
            q_len=self.max_q_len,
            lse=self.lse,
            sm_count=self.sm_count,
            dims=self.dims,
        ).checked()

    def checked(self) -> Deployment:
        """The deployment itself, or an `InputError` that names what none can have."""
        whole("heads", self.heads, least=1, most=INT32_MAX)
        for name in ("tp", "dcp", "pcp", "dp"):
            whole(name, getattr(self, name), least=1, most=_MAX_PARALLEL)
        if (self.tp * self.pcp) % self.dcp:
            raise InputError(
                f"dcp {self.dcp} must divide tp x pcp = {self.tp * self.pcp}; change dcp or tp"
            )
        if self.max_num_batched_tokens is None and self.max_num_seqs is None:
            raise InputError(
                "max_num_batched_tokens is missing: pass the tokens of the largest step"
            )
        for name in ("max_num_batched_tokens", "max_num_seqs"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), least=1, most=INT32_MAX)
        whole("max_q_len", self.max_q_len, least=1, most=INT32_MAX)
        whole("workspace_bytes", self.workspace_bytes, least=1)
        whole("sm_count", self.sm_count, least=1, most=MAX_SM_COUNT)
        return self


class Plan(NamedTuple):
    """The answer; the keys are the public contract. All `_bytes` in bytes, batches in rows."""

    fits: bool
    reasons: list[str]
    kernel_heads: int
    planned_batch: int
    max_q_len: int
    lse: bool
    layout: str
    slabs: dict[Slab, int]
    need_bytes: int
    workspace_bytes: int
    margin_bytes: int
    margin_batch: int | None
    margin_ratio: float
    overflow_threshold_batch: int | None
    overrun_batches: tuple[int, int] | None
    recommended_workspace_bytes: int
    extra_bytes_per_gpu: int
    env: dict[str, str]
    sites: list[dict[str, object]]
    notes: list[str]


def plan(deployment: Deployment, layout: Layout) -> Plan:
    """Judge a deployment on one layout, by the call of its worst step."""
    deployment.checked()
    judged = judge(deployment.worst_call, layout, deployment.workspace_bytes)
    return judged._replace(notes=_notes(deployment, judged.reasons))


def judge(
    call: Call, layout: Layout, workspace_bytes: int, base_bytes: int = DEFAULT_WORKSPACE_BYTES
) -> Plan:
    """Judge a workspace by the worst call that it must hold.

    The recommendation keeps the engine's base and adds the slab of the worst step, the rule of
    vLLM 0.30.0 (`compute_trtllm_sparse_mla_workspace_bytes`); an explicit workspace is judged as
    it is.
    """
    size = workspace_bytes
    threshold = overflow_threshold_batch(call, layout, size)
    overrun = overrun_batches(call, layout, size)
    reasons = _reasons(call.batch, threshold, overrun)
    worst = worst_need_bytes(call, layout)
    slabs = need(call, layout).slabs
    recommended = max(base_bytes + slabs["softmax_stats"], worst)
    return Plan(
        fits=not reasons,
        reasons=reasons,
        kernel_heads=call.heads,
        planned_batch=call.batch,
        max_q_len=call.q_len,
        lse=call.lse,
        layout=layout.name,
        slabs=slabs,
        need_bytes=worst,
        workspace_bytes=size,
        margin_bytes=size - worst,
        margin_batch=None if threshold is None else threshold - call.batch,
        margin_ratio=(size - worst) / size,
        overflow_threshold_batch=threshold,
        overrun_batches=overrun,
        recommended_workspace_bytes=recommended,
        extra_bytes_per_gpu=0 if size >= worst else recommended - size,
        env={},
        sites=[],
        notes=[],
    )


def _reasons(batch: int, threshold: int | None, overrun: tuple[int, int] | None) -> list[str]:
    """Why a call does not fit; nothing where it does."""
    whys = {
        "overflow": threshold is not None and batch > threshold,
        "overrun": overrun is not None,
        "grid_limit": batch > GRID_LIMIT_BATCH,
    }
    return [reason for reason, holds in whys.items() if holds]


def _notes(deployment: Deployment, reasons: list[str]) -> list[str]:
    notes = []
    if deployment.heads % deployment.tp:
        notes.append(
            f"{deployment.heads} heads do not divide by tp {deployment.tp}: "
            "counted as the next whole number per rank; the engine may refuse"
        )
    if "grid_limit" in reasons:
        notes.append(
            f"a batch above {GRID_LIMIT_BATCH:,} cannot launch whatever the workspace: "
            f"lower max_num_batched_tokens to {GRID_LIMIT_BATCH:,}"
        )
    if deployment.max_num_batched_tokens and deployment.max_num_seqs:
        notes.append("rows are the tokens of a step: max_num_seqs does not change the answer")
    return notes
