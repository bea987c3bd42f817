"""The two questions of the public API: what would the launcher do, and does a deployment fit?

`sizing` answers for a layout; here the layout is found: from a release's number, or from the source
of the installed FlashInfer.
"""

from __future__ import annotations

from . import contract, sizing
from .sizing import Call, Carve, Deployment, Entry, InputError, Layout, Plan
from .sizing.errors import whole


def resolve_layouts(flashinfer: str | None) -> tuple[tuple[Layout, ...], list[str]]:
    """The layouts to consider for a release, or for the installed one, and what to say of it.

    Raises `InputError` for a release whose layout is not known.
    """
    if flashinfer is not None:
        return _layouts_of_named(flashinfer)
    try:
        found = contract.installed_contract()
    except contract.NotInstalledError as error:
        newest = sizing.NEWEST_SEEN
        note = f"{error}: judged as FlashInfer {newest}, the newest known; pass flashinfer"
        return sizing.layouts_of_release(newest), [note]
    if found.layout is None:
        raise InputError(
            f"the launcher of the installed FlashInfer {found.release} carves in no known way "
            f"({found.reason}); pass flashinfer to judge another release"
        )
    notes = [f"judged by the source of the installed FlashInfer {found.release}"]
    if found.verdict != "verified":
        notes.append(f"{found.verdict}: {found.reason}")
    return (found.layout,), notes


def _layouts_of_named(release: str) -> tuple[tuple[Layout, ...], list[str]]:
    layouts = sizing.layouts_of_release(release)
    if len(layouts) > 1:
        names = " and ".join(layout.name for layout in layouts)
        note = f"{release} stands between layouts {names}: the worse is reported"
        return layouts, [note]
    if sizing.is_newer_than_seen(release):
        newest = sizing.NEWEST_SEEN
        note = f"{release} is newer than {newest}, the newest looked at: same layout assumed"
        return layouts, [note]
    return layouts, []


def plan(
    *,
    heads: int,
    tp: int = 1,
    dcp: int = 1,
    pcp: int = 1,
    dp: int = 1,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
    max_q_len: int = 1,
    workspace_bytes: int = sizing.DEFAULT_WORKSPACE_BYTES,
    sm_count: int = sizing.DEFAULT_SM_COUNT,
    flashinfer: str | None = None,
) -> Plan:
    """Size a deployment before its launch: does the workspace hold its worst step?

    heads are the model's query heads, the parallel sizes those of the launch command, tokens and
    sequences those of the largest step, `workspace_bytes` the workspace as it would be given.
    `flashinfer` is a release; without one the installed source decides. Raises `InputError` (a
    ValueError) that names the input and the remedy.
    """
    deployment = Deployment(
        heads=heads,
        tp=tp,
        dcp=dcp,
        pcp=pcp,
        dp=dp,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        max_q_len=max_q_len,
        workspace_bytes=workspace_bytes,
        sm_count=sm_count,
    ).checked()
    layouts, notes = resolve_layouts(flashinfer)
    plans = [sizing.plan(deployment, layout) for layout in layouts]
    worst = min(plans, key=lambda each: each.margin_bytes)
    return worst._replace(notes=[*notes, *worst.notes])


def carve(
    *,
    entry: Entry,
    num_qo_heads: int,
    batch_size: int,
    max_q_len: int,
    workspace_bytes: int,
    lse: bool,
    sm_count: int = sizing.DEFAULT_SM_COUNT,
    flashinfer: str | None = None,
    sum_q: int | None = None,
    workspace_address: int = 0,
    counter_buffer_bytes: int | None = None,
) -> Carve:
    """What FlashInfer's launcher does with these arguments, byte for byte.

    The names are the launcher's own: `max_q_len` and `sum_q` in tokens, sizes in bytes. `sum_q`
    matters to layout A's ragged entry (default: batch_size * max_q_len), `counter_buffer_bytes` to
    layout C's decode and dsv4 (default: large enough). Raises `InputError` for impossible inputs.
    """
    if entry not in sizing.ENTRIES:
        raise InputError(f"entry must be one of {', '.join(sizing.ENTRIES)}, got {entry!r}")
    whole("workspace_bytes", workspace_bytes, least=0)
    whole("workspace_address", workspace_address, least=0)
    call = Call(
        entry=entry,
        heads=num_qo_heads,
        batch=batch_size,
        q_len=max_q_len,
        lse=bool(lse),
        sm_count=sm_count,
        sum_q=sum_q,
        counter_buffer_bytes=counter_buffer_bytes,
    ).checked()
    layouts, _ = resolve_layouts(flashinfer)
    answers = [sizing.carve(call, layout, workspace_bytes, workspace_address) for layout in layouts]
    return min(answers, key=lambda answer: (answer.ok, answer.scratch_available or 0))
