"""The tables against the source of the installed engines: `make test-vllm` has both."""

from __future__ import annotations

import argparse
import re
from importlib.metadata import requires, version

import pytest

from ws_guard.engines import vllm_sites
from ws_guard.engines.flags import human_number
from ws_guard.engines.judge import workspace_bytes
from ws_guard.engines.launch import Launch
from ws_guard.engines.model import assumed_model
from ws_guard.engines.releases import ENGINES, find_release, numbers, sites_of
from ws_guard.engines.sites import Engine

from .engine_source import function_of, package_of

MIB = 1 << 20
ENGINE = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
pytestmark = pytest.mark.engine


@ENGINE
def test_sites_against_the_source(engine: Engine) -> None:
    package = package_of(engine.name)
    release, _ = find_release(engine, version(engine.distribution))
    for site in sites_of(engine, release):
        path = package / site.source
        if site.size != "fixed" or path.exists():
            source = path.read_text(encoding="utf-8")
            seen = [site.called, site.holder, *site.also_seen, *([site.env] if site.env else [])]
            missing = [text for text in seen if text not in source]
            assert not missing, f"{site.workspace} of {release.version}: not in {site.source}"


@ENGINE
def test_every_source_file_is_there(engine: Engine) -> None:
    package = package_of(engine.name)
    release, _ = find_release(engine, version(engine.distribution))
    missing = [
        site.source for site in sites_of(engine, release) if not (package / site.source).is_file()
    ]
    assert missing == []


@ENGINE
def test_the_flashinfer_that_it_ships(engine: Engine) -> None:
    package_of(engine.name)
    release, _ = find_release(engine, version(engine.distribution))
    needed = " ".join(requires(engine.distribution) or [])
    match = re.search(r"flashinfer[-_]python(?:\[\w+\])?==([\w.]+)", needed)
    assert match is not None
    assert match[1] == release.flashinfer


def test_vllm_reads_its_variable_where_the_table_says() -> None:
    package = package_of("vllm")
    reads = {
        str(path.relative_to(package)): text.count(f"= envs.{vllm_sites.ENV}\n")
        + text.count(f"envs.{vllm_sites.ENV},")
        + text.count(f"else envs.{vllm_sites.ENV}\n")
        for path in (package / "v1").rglob("*.py")
        if vllm_sites.ENV in (text := path.read_text(encoding="utf-8"))
    }
    backends = "v1/attention/backends"
    # The five places of `env_note`: dense attention reads it twice, for two buffers.
    assert set(reads) == {
        f"{backends}/mla/flashinfer_mla_sparse.py",
        f"{backends}/mla/prefill/trtllm_ragged.py",
        f"{backends}/mla/prefill/flashinfer.py",
        f"{backends}/flashinfer.py",
    }
    assert reads[f"{backends}/flashinfer.py"] == 2


def test_vllm_computes_the_sparse_size_that_the_plan_takes() -> None:
    package = package_of("vllm")
    if numbers(version("vllm")) < (0, 30, 0):
        pytest.skip("sized since 0.30.0")
    release, _ = find_release(ENGINES["vllm"], version("vllm"))
    site = next(s for s in sites_of(ENGINES["vllm"], release) if s.workspace == "sparse_mla")
    theirs = function_of(package / site.source, "compute_trtllm_sparse_mla_workspace_bytes")
    for dcp, tp, heads, tokens in ((8, 8, 128, 512), (8, 8, 64, 16_384), (2, 4, 128, 8_192)):
        launch = Launch(
            "vllm",
            release.version,
            assumed_model("sparse_mla", heads),
            tp=tp,
            dcp=dcp,
            max_num_batched_tokens=tokens,
        )
        assert workspace_bytes(site, launch) == theirs(394 * MIB, dcp, heads // tp, tokens)
    # The facts' own figure: DCP 8, 16 heads a rank, 512 tokens
    assert theirs(394 * MIB, 8, 16, 512) == 548_405_248


def test_vllm_defaults_of_a_large_gpu() -> None:
    package = package_of("vllm")
    release, _ = find_release(ENGINES["vllm"], version("vllm"))
    if not release.seen:
        pytest.skip(f"{release.version} was not looked at")
    source = (package / "engine/arg_utils.py").read_text(encoding="utf-8")
    first = source[source.index("if device_memory >=") :]
    servers = re.findall(r"OPENAI_API_SERVER: (\d+)", first)[:2]
    assert [int(number) for number in servers] == [
        release.max_num_batched_tokens,
        release.max_num_seqs,
    ]


def test_vllm_human_numbers() -> None:
    path = package_of("vllm") / "utils/argparse_utils.py"
    theirs = function_of(path, "human_readable_int", re=re, argparse=argparse)
    for text in ("16384", "16k", "16K", "25.6k", "2M", "1g"):
        assert human_number(text) == theirs(text)


def test_sglang_defaults() -> None:
    package = package_of("sglang") / "srt"
    memory = (package / "arg_groups/memory_hook.py").read_text(encoding="utf-8")
    large = memory[memory.index("# B200, MI300") :]
    assert "chunked_prefill_size=16384" in large[:500]
    pool = (package / "mem_cache/kv_cache_configurator.py").read_text(encoding="utf-8")
    assert "max(min(estimated, 4096), 2048)" in pool
    rows = package / "layers/attention/dsa/dsa_dcp.py"
    assert "_SCRATCH_RESERVE_BYTES = 128 << 20" in rows.read_text(encoding="utf-8")
