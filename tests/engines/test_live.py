"""Sites of a running worker: real sizes, names by address, advice that can be followed."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from ws_guard.engines.launch import Launch
from ws_guard.engines.live import holder_bytes, judge_live, planned_document, site_at
from ws_guard.engines.model import Model
from ws_guard.engines.releases import ENGINES
from ws_guard.sizing import LAYOUTS, OPS, XQA_OPS

MIB = 1 << 20
ENV = "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"


class Tensor(NamedTuple):
    """A buffer as far as it is looked at."""

    address: int
    nbytes: int

    def data_ptr(self) -> int:
        return self.address


@pytest.fixture
def gqa() -> Launch:
    """Dense attention under DCP on vLLM 0.33.0: three sites in one buffer."""
    return Launch(
        engine="vllm",
        version="0.33.0",
        model=Model("", "gqa", 64, head_dim=128),
        tp=8,
        dcp=8,
        max_num_batched_tokens=8192,
        max_num_seqs=256,
    )


def test_sites_in_one_buffer_are_told_apart_by_their_op(gqa: Launch) -> None:
    judged = judge_live(gqa, LAYOUTS["C"], {})
    buffer = Tensor(4096, 394 * MIB)
    named = {entry: site_at(judged, op, 4096 + MIB, lambda _: buffer) for entry, op in OPS.items()}
    # The DCP context pass makes the same native call as the prefill: they are one workspace.
    assert named == {"decode": "dense_decode", "context": "dense_prefill", "ragged": "", "dsv4": ""}
    beyond = 4096 + buffer.nbytes
    assert site_at(judged, OPS["decode"], beyond, lambda _: buffer) == ""
    documents = planned_document(gqa, LAYOUTS["C"], judged)
    assert [told["workspace"] for told in documents] == [
        "dense_decode",
        "dense_prefill",
        "dense_prefill",
    ]


def test_size_that_a_buffer_has_wins_over_the_rule(gqa: Launch) -> None:
    sizes = {"trtllm_workspace_buffer": 16 * MIB}
    (decode, *_) = judge_live(gqa, LAYOUTS["C"], sizes)
    # 15 MiB / (8 bytes x 64 heads x 256 slots) = 120 rows.
    assert (decode.plan.overflow_threshold_batch, decode.plan.fits) == (120, False)
    (told, *_) = planned_document(gqa, LAYOUTS["C"], [decode])
    # 394 MiB + 256 rows x 131,072 bytes + 1 MiB.
    assert told["env"] == {ENV: str(394 * MIB + 256 * 131_072 + MIB)}


def test_constant_size_asks_for_smaller_steps_only() -> None:
    launch = Launch(
        engine="vllm",
        version="0.28.0",
        model=Model("", "mla", 128, kv_lora_rank=512, qk_rope_head_dim=64),
        tp=8,
        dcp=8,
        max_num_batched_tokens=8192,
        max_num_seqs=1_024,
    )
    judged = judge_live(launch, LAYOUTS["C"], {})
    (told,) = planned_document(launch, LAYOUTS["C"], judged)
    assert (told["workspace"], told["fits"]) == ("mla_decode", False)
    assert told["overflow_threshold_batch"] == 1_020
    assert (told["env"], told["recommended_workspace_bytes"]) == ({}, None)


def test_buffers_are_found_in_what_an_engine_keeps() -> None:
    kept = {"cuda:0": Tensor(0, 128), ("cuda:1", 64): [Tensor(64, 96)]}
    assert holder_bytes(kept) == 96
    assert holder_bytes(Tensor(0, 7)) == 7
    for nothing in (None, {}, len):
        assert holder_bytes(nothing) is None


XQA = XQA_OPS["xqa"]


def test_xqa_decodes_at_vllms_dense_site(gqa: Launch) -> None:
    judged = judge_live(gqa, LAYOUTS["C"], {})
    buffer = Tensor(4096, 394 * MIB)
    # Python hands over the workspace's beginning as semaphores: it is found by that address.
    assert site_at(judged, XQA, 4096, lambda _: buffer) == "dense_decode"
    assert site_at(judged, XQA, 4096 + buffer.nbytes, lambda _: buffer) == ""
    # No MLA runs there, nor any site that decodes by other kernels.
    assert site_at(judged, XQA_OPS["xqa_mla"], 4096, lambda _: buffer) == ""


def test_xqa_decodes_at_sglangs_dense_site() -> None:
    launch = Launch(
        engine="sglang",
        version="0.5.23",
        model=Model("", "gqa", 64, head_dim=128),
        tp=8,
        max_num_batched_tokens=8192,
        max_num_seqs=256,
    )
    judged = judge_live(launch, LAYOUTS["C"], {})
    # On SM90 it is 8 MiB larger than 512 MiB, for the semaphores.
    buffer = Tensor(4096, 520 * MIB)
    named = {op: site_at(judged, op, 4096, lambda _: buffer) for op in (*OPS.values(), XQA)}
    assert named == {
        OPS["decode"]: "trtllm_mha_decode",
        OPS["context"]: "trtllm_mha_prefill",
        OPS["ragged"]: "",
        OPS["dsv4"]: "",
        XQA: "trtllm_mha_decode",
    }


def test_only_dense_decode_reaches_xqa() -> None:
    reached = {
        (engine.name, site.workspace)
        for engine in ENGINES.values()
        for site in engine.sites
        if site.also_entries
    }
    assert reached == {("vllm", "dense_decode"), ("sglang", "trtllm_mha_decode")}
