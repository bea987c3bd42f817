"""The sites of a running worker: judged with the sizes that they have, and told by address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ws_guard.foreign import Tensor
from ws_guard.sizing import ENTRY_OF_OP, Layout, judge

from .judge import Judged, default_bytes, judge_site, planned_call, variable_bytes
from .launch import Launch
from .releases import engine_named, find_release, sites_of
from .remedy import remedy
from .sites import Engine, Site


def judge_live(launch: Launch, layout: Layout, sizes: Mapping[str, int]) -> list[Judged]:
    """The live sites of a worker. `sizes`: bytes of the buffers that are known, by holder.

    Raises `InputError` for a release whose workspaces are not known.
    """
    rows = _rows(launch)
    judged = [judge_site(row, launch, (layout,)) for row in rows]
    return [_resized(each, launch, layout, sizes) for each in judged if each.live]


def _rows(launch: Launch) -> tuple[Site, ...]:
    engine = engine_named(launch.engine)
    return sites_of(engine, find_release(engine, launch.version)[0])


def _resized(judged: Judged, launch: Launch, layout: Layout, sizes: Mapping[str, int]) -> Judged:
    size = sizes.get(judged.site.holder, judged.plan.workspace_bytes)
    if size == judged.plan.workspace_bytes:
        return judged
    base = default_bytes(judged.site, launch)
    return judged._replace(plan=judge(planned_call(judged.site, launch), layout, size, base))


def planned_document(launch: Launch, layout: Layout, judged: list[Judged]) -> list[dict[str, Any]]:
    """What a worker's document says under `planned`: the keys of a plan, site by site."""
    engine, names = engine_named(launch.engine), site_names(each.site for each in judged)
    env = remedy(engine, launch, judged, (layout,)).env if judged else {}
    return [
        {
            "workspace": names[each.site.holder, each.site.entry],
            **each.plan._asdict(),
            **_advice(engine, launch, each, env),
        }
        for each in judged
    ]


def _advice(engine: Engine, launch: Launch, each: Judged, env: dict[str, str]) -> dict[str, Any]:
    """What makes a site fit. Where no variable changes its size, only smaller steps do."""
    if each.site.size == "fixed":
        return {"env": {}, "recommended_workspace_bytes": None}
    if each.plan.fits:
        return {"env": {}}
    return {"env": env or {engine.env: str(variable_bytes(each, launch))}}


def site_names(sites: Iterable[Site]) -> dict[tuple[str, str], str]:
    """The name of each buffer as an entry sees it: that of its first site.

    A native call tells its entry and its buffer, no more: sites that share both are one workspace.
    """
    names: dict[tuple[str, str], str] = {}
    for site in sites:
        names.setdefault((site.holder, site.entry), site.workspace)
    return names


def site_at(judged: Iterable[Judged], op: str, address: int, held: Callable[[Site], object]) -> str:
    """The name of the live site whose buffer an op was handed; "" where no site's has the address.

    `held` gives what the engine keeps for a site.
    """
    entry = ENTRY_OF_OP.get(op)
    sites = [each.site for each in judged if entry in (each.site.entry, *each.site.also_entries)]
    names = site_names(sites)
    for site in sites:
        kept = held(site)
        # What the engine allots call by call has no address of its own: its entry tells.
        if callable(kept) or any(_covers(tensor, address) for tensor in tensors_in(kept)):
            return names[site.holder, site.entry]
    return ""


def _covers(tensor: Tensor, address: int) -> bool:
    start = tensor.data_ptr()
    return bool(start <= address < start + tensor.nbytes)


def holder_bytes(held: object) -> int | None:
    """Bytes of the smallest buffer that an engine keeps under a name; None where there is none."""
    return min((int(tensor.nbytes) for tensor in tensors_in(held)), default=None)


def tensors_in(held: object) -> Iterator[Any]:
    """The tensors under a holder's name: itself, or those in a mapping or sequence."""
    if hasattr(held, "data_ptr"):
        yield held
    elif isinstance(held, Mapping):
        for each in held.values():
            yield from tensors_in(each)
    elif isinstance(held, (list, tuple)):
        for each in held:
            yield from tensors_in(each)
