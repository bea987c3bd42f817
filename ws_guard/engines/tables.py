"""The tables of docs/ENGINES.md, made from the data: `python -m ws_guard.engines.tables`."""

from __future__ import annotations

from .releases import ENGINES
from .sites import Engine, Site

_HEAD = (
    "| site | releases | source | size | native call | LSE | heads | batch | query tokens |"
    " live when | note |"
)
_LSE = {"never": "no", "dcp": "DCP > 1", "always": "always"}
_HEADS = {"rank": "of the rank", "gathered": "rank's x DCP", "padded": "padded to 64 or 128"}
_BATCH = {
    "tokens": "tokens of the step",
    "requests": "requests",
    "prefill_requests": "requests of a prefill step",
}
_Q_LEN = {"one": "1", "draft": "1 + drafted", "step": "up to the step's tokens"}
_MODELS = {"sparse_mla": "sparse MLA", "mla": "dense MLA", "gqa": "GQA", "dsv4": "DeepSeek-V4"}
_MIB = 1 << 20


def sites_table(engine: Engine) -> str:
    """The engine's sites as a Markdown table."""
    rows = [_row(site) for site in engine.sites]
    return "\n".join([_HEAD, "|---" * _HEAD.count(" | ") + "|---|", *rows])


def releases_table(engine: Engine) -> str:
    """The engine's releases, what they ship and their defaults, as a Markdown table."""
    head = f"| release | FlashInfer | `{engine.tokens_flag}` | `{engine.seqs_flag}` | source read |"
    rows = [
        f"| {release.version} | {release.flashinfer} | {release.max_num_batched_tokens:,} | "
        f"{release.max_num_seqs:,} | {'yes' if release.seen else 'no'} |"
        for release in engine.releases
    ]
    return "\n".join([head, "|---|---|---|---|---|", *rows])


def _row(site: Site) -> str:
    span = f"{site.since} on" if site.before is None else f"{site.since} to before {site.before}"
    cells = (
        f"`{site.workspace}`",
        span,
        f"`{site.source}`, `{site.holder}`",
        _size(site),
        f"{' or '.join((site.entry, *site.also_entries))} (`{site.called}`)",
        _LSE[site.lse],
        _HEADS[site.heads],
        _BATCH[site.batch] + (f", at most {site.max_batch}" if site.max_batch else ""),
        _Q_LEN[site.q_len],
        _live(site),
        site.note,
    )
    return f"| {' | '.join(cells)} |"


def _size(site: Site) -> str:
    size = f"{site.size_bytes // _MIB} MiB"
    if site.lse_size_bytes is not None:
        size += f" ({site.lse_size_bytes // _MIB} MiB with DCP)"
    if site.env is None:
        return f"{size}, fixed"
    computed = " + the slab of the step under DCP" if site.size == "computed" else ""
    times = " x DCP" if site.size == "env_x_dcp" else ""
    return f"`{site.env}`{times}, else {size}{times}{computed}"


def _live(site: Site) -> str:
    kinds = " and ".join(_MODELS[kind] for kind in site.default_kinds)
    if site.default_dims:
        kinds += f" with head dimensions {'/'.join(map(str, site.default_dims))}"
    if site.architectures:
        several = len(site.architectures) > 1
        name = f"{len(site.architectures)} architectures" if several else site.architectures[0]
        kinds += f" of {name}"
    chosen = " or ".join(f"`{name}`" for name in site.backends)
    told = [f"by default: {kinds}"] if kinds else []
    return "; ".join([*told, *([f"chosen: {chosen}"] if chosen else [])])


if __name__ == "__main__":
    for each in ENGINES.values():
        print(f"## {each.name}\n\n{releases_table(each)}\n\n{sites_table(each)}\n")
