"""No input ends in a traceback: random bytes, and messages that were cut, mixed and torn apart."""

from __future__ import annotations

import gzip
import json
import random
import warnings
from typing import TYPE_CHECKING

import pytest
from formats import FORMATS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from messages import (
    COUNTER_CHECK,
    NO_HUB,
    UNNAMED,
    locked,
    old_overflow,
    out_of_memory,
    overflow,
    short_counter,
)

from ws_guard.explain.logs import explain_log
from ws_guard.explain.text import findings_text, verdict_lines
from ws_guard.sizing import InputError

if TYPE_CHECKING:
    from pathlib import Path

RELAXED = settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

numbers = st.one_of(
    st.integers(0, 1 << 70),
    st.sampled_from([0, 1, 8_388_608, 413_138_944, 1_611_661_312, 1 << 40, (1 << 63) - 1, 1 << 64]),
)
slabs = st.sampled_from(
    [
        "trtllm_gen_softmax_workspace",
        "trtllm_gen_counter_workspace",
        "trtllm_gen_scratch_workspace",
        "batch_prefill_tmp_v",
        "batch_prefill_tmp_s",
        "batch_decode_tmp_v",
        "batch_decode_tmp_s",
        "batch_prefill_request_indices",
        "x",
    ]
)
hints = st.one_of(
    st.builds(
        "{} {}={} '{}': {}".format,
        st.sampled_from(["", "vllm serve m", "ServerArgs(", "non-default args: {", "{"]),
        st.sampled_from(["tp", "dcp", "tp_size", "max_num_seqs", "num_attention_heads"]),
        numbers,
        st.sampled_from(
            ["tensor_parallel_size", "max_num_batched_tokens", "head_dim", "num_key_value_heads",
             "num_speculative_tokens", "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", "sm_count"]
        ),
        numbers,
    ),
    st.sampled_from(
        ["flashinfer==0.6.14", "flashinfer==9999.0.0", "vLLM API server version 0.26.0",
         "vLLM API server version x", "sglang==0.5.23", "vllm serve 'unbalanced", "{" * 5_000,
         "ServerArgs(enable_deterministic_inference=True)", '{"MESSAGE":[1,2', "NVIDIA B200",
         "gpu_memory_utilization=0.9"]
    ),
)  # fmt: skip
messages = st.one_of(
    st.builds(overflow, slabs, numbers, numbers, st.sampled_from([49, 71, 1])),
    st.builds(old_overflow, slabs, numbers),
    st.builds(short_counter, numbers, numbers),
    st.builds(locked, st.text(max_size=20), st.just("394.00"), st.just("0.00")),
    st.builds(out_of_memory, st.just("394.00 MiB"), st.sampled_from(["1.00 GiB", "0 bytes"])),
    st.sampled_from([UNNAMED, COUNTER_CHECK]),
)
lines = st.lists(st.one_of(messages, hints, st.text(max_size=60)), max_size=8)


def feed(content: bytes, directory: Path) -> None:
    """Explain bytes: findings that can be told, or one clear line."""
    path = directory / "log"
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = explain_log(str(path), NO_HUB)
        except InputError as error:
            if "\n" in str(error):
                raise
            return
    assert findings_text(found) or not found
    assert len(verdict_lines(found)) == len(found)
    for finding in found:
        assert finding.confidence != "exact" or finding.solutions or finding.kind != "overflow"
        assert json.loads(json.dumps(finding.as_dict()))["size"] == finding.size


@RELAXED
@given(content=st.binary(max_size=4_000))
def test_any_bytes(content: bytes, tmp_path: Path) -> None:
    feed(content, tmp_path)


@RELAXED
@given(lines=lines, wrap=st.sampled_from(FORMATS), cut=st.integers(0, 4_000), data=st.data())
def test_torn_messages(
    lines: list[str], wrap: object, cut: int, data: st.DataObject, tmp_path: Path
) -> None:
    whole = wrap([line.replace("\n", " ") for line in lines])
    feed(whole, tmp_path)
    feed(whole[cut:], tmp_path)
    feed(whole[:cut], tmp_path)
    if whole:
        torn = bytearray(whole)
        for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=8)):
            torn[at] ^= 1 << (at % 8)
        feed(bytes(torn), tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n" * 100_000,
        b"\x00" * 100_000,
        b"\xff\xfe",
        b"\xff\xfea",
        b"\x1f\x8b",
        b"BZh9",
        b"\xfd7zXZ\x00",
        b"PK\x03\x04",
        b"{" * 100_000,
        b'{"a":' * 50_000,
        b"[" * 100_000,
        b'"' * 100_000,
        b"\x1b[" * 50_000,
        b"(Worker pid=1) " * 20_000,
        b"AlignedAllocator " * 20_000,
        b" and alignment" * 30_000,
        b"with size " + b"9" * 200_000 + b" and alignment 16",
        b"tensor_parallel_size=" + b"9" * 100_000,
        b"vllm serve " + b"\\\n" * 20_000,
        b"vllm serve " + b"a" * 200_000,
        b"a " * 200_000 + b"Out of workspace memory",
        gzip.compress(b"\x00" * (20 << 20), mtime=0),
        random.Random(7).randbytes(300_000),  # noqa: S311 - the same bytes each time
    ],
    ids=lambda content: repr(content[:16]),
)
def test_odd_inputs(content: bytes, tmp_path: Path) -> None:
    feed(content, tmp_path)
    feed(content + overflow("batch_prefill_tmp_v", 536_346_624, 413_138_944).encode(), tmp_path)
