"""Misspelt values and keys of a launch command's flags, and the lists against an engine's own."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest

from ws_guard.engines.known_values import known_values
from ws_guard.engines.reader import Asked, read_launch
from ws_guard.sizing import InputError

from .engine_source import package_of


def notes_on(line: str, version: str | None = None) -> list[str]:
    return read_launch(Asked(engine_version=version, heads=64), shlex.split(line), {})[1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "--attention-backend FLASHINFER_MLA_SPARS",
            r"--attention-backend FLASHINFER_MLA_SPARS of .* did you mean FLASHINFER_MLA_SPARSE\?",
        ),
        (
            """--attention-config '{"backend":"FLASHINFER_MLA_SPARS"}'""",
            r"--attention-config.backend FLASHINFER_MLA_SPARS .* FLASHINFER_MLA_SPARSE\?",
        ),
        ("--attention-config.mla_prefill_backend TRTLLM_RAGED", r"mean TRTLLM_RAGGED\?"),
        (
            "--attention-config.mla_prefil_backend TRTLLM_RAGGED",
            r"mla_prefil_backend is no key .* did you mean mla_prefill_backend\?",
        ),
        ("""-ac '{"mla_prefil_backend": "x"}'""", r"did you mean mla_prefill_backend\?"),
        ("-ac FLASHINFER_MLA", "-ac of the launch command: 'FLASHINFER_MLA' cannot be read"),
        ("""-sc '{"num_speculative_token": 3}'""", r"did you mean num_speculative_tokens\?"),
        ("--kv-cache-dtype fp9", r"--kv-cache-dtype fp9 .* did you mean fp8\?"),
        ("--performance-mode thruput", r"did you mean throughput\?"),
        ("--performance-mode x", ": write balanced or interactivity or throughput$"),
        ("--attention-backend $BACKEND", r"the shell did not fill in \$BACKEND: write its value$"),
        ("--attention-backend x", "is no value that vllm has: see its --help$"),
    ],
)
def test_misspelt_ones_of_vllm_are_refused(line: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        notes_on(f"vllm serve some/model {line}")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("--attention-backend trtllmmla", "trtllm_mla"),
        ("--attention-backend trtllm-mha", "trtllm_mha"),
        ("--decode-attention-backend trtllm_ml", "trtllm_mla"),
        ("--dsa-decode-backend trt_llm", "trtllm"),
        ("--dsv4-attn-backend trtlm", "trtllm"),
        ("--kv-cache-dtype fp8_e4m4", "fp8_e4m3"),
    ],
)
def test_misspelt_ones_of_sglang_are_refused(line: str, meant: str) -> None:
    with pytest.raises(InputError, match=rf"did you mean {meant}\?"):
        notes_on(f"sglang serve --model-path some/model {line}")


@pytest.mark.parametrize(
    "line",
    [
        "--attention-backend flashinfer_mla_sparse --kv-cache-dtype fp8_ds_mla",
        "--attention-backend auto",
        """-ac '{"backend": null, "use_trtllm_attention": false, "flash_attn_version": 3}'""",
        "--attention-config.hisparse_config.device_buffer_size 8",
        "--performance-mode throughput --all2all-backend deepep_low_latency",
        """-sc '{"method": "mtp", "num_speculative_tokens": 3}'""",
    ],
)
def test_what_the_engine_has_is_not(line: str) -> None:
    assert not any("not known here" in note for note in notes_on(f"vllm serve some/model {line}"))


def test_a_newer_release_may_have_it() -> None:
    line = "vllm serve some/model --attention-backend FLASHINFER_MLA_SPARS"
    assert any(
        note.startswith("not known here: --attention-backend FLASHINFER_MLA_SPARS of")
        and note.endswith("did you mean FLASHINFER_MLA_SPARSE?")
        for note in notes_on(line, "0.99.0")
    )


def test_a_key_far_from_those_that_are_read_is_a_note() -> None:
    notes = notes_on("vllm serve some/model --attention-config.flash_attn_vers 3")
    assert any("flash_attn_vers is no key" in note for note in notes)


def names_of(path: Path, name: str) -> set[str]:
    """The members of an enumeration, the fields of a class, or the texts of a constant."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for each in node.body:
                targets = each.targets if isinstance(each, ast.Assign) else []
                targets += [each.target] if isinstance(each, ast.AnnAssign) else []
                names |= {one.id for one in targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            texts = (one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant))
            names |= {text for text in texts if isinstance(text, str)}
    assert names, f"no {name} in {path}"
    return names


@pytest.mark.engine
@pytest.mark.parametrize(
    ("engine", "flag", "source", "name"),
    [
        (
            "vllm",
            "--attention-backend",
            "v1/attention/backends/registry.py",
            "AttentionBackendEnum",
        ),
        (
            "vllm",
            "--attention-config.mla_prefill_backend",
            "v1/attention/backends/mla/prefill/registry.py",
            "MLAPrefillBackendEnum",
        ),
        ("vllm", "--attention-config", "config/attention.py", "AttentionConfig"),
        ("vllm", "--speculative-config", "config/speculative.py", "SpeculativeConfig"),
        ("vllm", "--kv-cache-dtype", "config/cache.py", "CacheDType"),
        ("vllm", "--performance-mode", "config/vllm.py", "PerformanceMode"),
        ("vllm", "--all2all-backend", "config/parallel.py", "All2AllBackend"),
        (
            "sglang",
            "--attention-backend",
            "srt/arg_groups/choices.py",
            "ATTENTION_BACKEND_CHOICES",
        ),
    ],
)
def test_all_that_an_installed_engine_has_is_known(
    engine: str, flag: str, source: str, name: str
) -> None:
    assert names_of(package_of(engine) / source, name) <= set(known_values(engine)[flag])
