"""Whatever overflows, its message explained leads back to the call: real messages, random calls.

The messages come from the launcher of the installed FlashInfer, compiled for the CPU, from the
recorded answers of five releases, and from the torch op that carves by the same rules.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from messages import NO_HUB, VLLM, failed_step, overflow

from ws_guard.explain.logs import explain_log
from ws_guard.sizing import ENTRIES, LAYOUTS, Call, Layout, carve, layouts_of_release

if TYPE_CHECKING:
    from ws_guard.explain.finding import Finding

RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "launcher_carve.jsonl")
    .read_text()
    .splitlines()
]
#: Files are written into one directory: a function's fixture would be shared by all examples.
RELAXED = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

calls = st.builds(
    lambda entry, heads, batch, q_len: Call(entry, heads, batch, q_len, lse=True),
    st.sampled_from(ENTRIES),
    st.integers(1, 256),
    st.integers(1, 20_000),
    st.one_of(st.just(1), st.integers(1, 8), st.integers(1, 16_384)),
)
#: From a byte to a GiB: most of them are too small for most calls.
sizes = st.integers(1, 1 << 30)


def explained(message: str, directory: Path, *told: str) -> Finding:
    path = directory / "crash.log"
    path.write_text("\n".join([*told, message, ""]))
    (found,) = explain_log(str(path), NO_HUB)
    return found


def assert_truth(found: Finding, call: Call, layout: Layout, workspace_bytes: int) -> None:
    assert layout.name in found.layouts
    assert workspace_bytes in found.workspace_bytes
    if found.slab == "trtllm_gen_counter_workspace":
        return  # its size is the same for every call
    assert any(
        each.num_qo_heads == call.heads
        and each.batch_size == call.batch
        and each.lowest_q_len is not None
        and each.highest_q_len is not None
        and each.lowest_q_len <= call.q_len <= each.highest_q_len
        for each in found.solutions
    ), f"{call} is not among {len(found.solutions)} solutions"
    if found.confidence == "exact":
        assert len(found.solutions) == 1
    assert found.need_bytes is not None
    assert found.need_bytes > workspace_bytes


@RELAXED
@given(call=calls, layout=st.sampled_from(sorted(LAYOUTS)), workspace_bytes=sizes)
def test_any_refusal(call: Call, layout: str, workspace_bytes: int, tmp_path: Path) -> None:
    reference = pytest.importorskip("ws_guard.reference")
    refused = carve(call, LAYOUTS[layout], workspace_bytes).refused
    assume(refused is not None and refused.size is not None)
    assert refused is not None
    text = reference.refusal_text(refused, LAYOUTS[layout])
    assert_truth(explained(text, tmp_path), call, LAYOUTS[layout], workspace_bytes)


@RELAXED
@given(
    heads=st.sampled_from([8, 16, 32, 64, 128]),
    tp=st.sampled_from([1, 2, 4, 8]),
    batch=st.integers(1, 16_384),
    workspace_bytes=sizes,
    layout=st.sampled_from("BC"),
)
def test_hints_never_lose_the_truth(
    heads: int, tp: int, batch: int, workspace_bytes: int, layout: str, tmp_path: Path
) -> None:
    """vLLM's sparse MLA under DCP: every token of a step is a row of all the group's heads."""
    # Every rank's heads gathered over the whole group are the model's heads again.
    call = Call("decode", heads, batch, lse=True)
    refused = carve(call, LAYOUTS[layout], workspace_bytes).refused
    assume(refused is not None and refused.slab == "trtllm_gen_softmax_workspace" and tp > 1)
    assert refused is not None
    assert refused.size is not None
    assert refused.available is not None
    told = (
        f"vllm serve m -tp {tp} -dcp {tp} --max-num-batched-tokens 16384",
        f'"num_attention_heads": {heads}',
    )
    text = overflow(refused.slab, refused.size, refused.available, 49 if layout == "B" else 71)
    found = explained(text, tmp_path, *told)
    assert_truth(found, call, LAYOUTS[layout], workspace_bytes)
    assert {each.num_qo_heads for each in found.solutions} >= {heads}


@RELAXED
@given(
    heads=st.sampled_from([8, 16, 32, 48, 64, 96, 128]),
    tp=st.sampled_from([1, 2, 4, 8]),
    batch=st.integers(1, 16_384),
    workspace_bytes=sizes,
    is_dumped=st.booleans(),
)
def test_unknown_heads_get_what_holds_for_them(
    heads: int, tp: int, batch: int, workspace_bytes: int, is_dumped: bool, tmp_path: Path
) -> None:
    """The same without the model, with or without what vLLM writes of the step that failed."""
    call = Call("decode", heads, batch, lse=True)
    refused = carve(call, LAYOUTS["C"], workspace_bytes).refused
    assume(refused is not None and refused.size is not None and tp > 1)
    assert refused is not None
    told = [f"vllm serve m -tp {tp} -dcp {tp} --max-num-batched-tokens 16384"]
    told += [failed_step(batch)] if is_dumped else []
    text = overflow(refused.slab, refused.size or 0, refused.available or 0, 71)
    found = explained(text, tmp_path, *told)
    assert_truth(found, call, LAYOUTS["C"], workspace_bytes)
    # 394 MiB, and the slab of the largest step.
    largest = (394 << 20) + 8 * heads * 16_384 * 256 + (1 << 20)
    assert int(found.env[VLLM]) >= largest
    if found.confidence == "exact":
        assert int(found.env[VLLM]) == largest


def refusals() -> list[dict[str, Any]]:
    return [each for each in RECORDED if each["result"].get("size") is not None]


@pytest.mark.parametrize("index", range(len(refusals())))
def test_recorded_refusals_of_real_launchers(index: int, tmp_path: Path) -> None:
    told = refusals()[index]
    result = told["result"]
    layout = layouts_of_release(told["flashinfer"])[0]
    line = 49 if layout.name in "AB" else 71
    text = overflow(result["slab"], result["size"], result["available"], line)
    call = Call(
        told["entry"], told["num_qo_heads"], told["batch_size"], told["max_q_len"], told["lse"]
    )
    found = explained(text, tmp_path)
    padding = -told["workspace_address_mod_16"] % 16
    assert layout.name in found.layouts
    if result["slab"] == "trtllm_gen_counter_workspace":
        assert told["workspace_bytes"] in found.workspace_bytes
        return
    # A message does not tell the padding before the first slab.
    assert {told["workspace_bytes"], told["workspace_bytes"] - padding} & set(found.workspace_bytes)
    if result["size"] > 1 << 40:
        assert found.confidence == "unsolved"
        return
    triples = {
        (each.num_qo_heads, each.batch_size)
        for each in found.solutions
        if (each.lowest_q_len or 0) <= call.q_len <= (each.highest_q_len or 0)
    }
    if layout.name == "A":
        # Rows of any lengths: the sum of their tokens is what the size tells.
        tokens = {each.num_qo_heads * (each.batch_size or 0) * (each.max_q_len or 0)
                  for each in found.solutions if each.num_qo_heads == call.heads}  # fmt: skip
        assert call.heads * (told.get("sum_q") or call.batch * call.q_len) in tokens
    else:
        assert (call.heads, call.batch) in triples


def test_there_are_recorded_refusals() -> None:
    assert len(refusals()) > 50


class Telling:
    """A module whose functions leave the text of their last error behind."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.text = ""

    def __getattr__(self, op: str) -> Any:
        def call(*arguments: object) -> object:
            try:
                return getattr(self._module, op)(*arguments)
            except RuntimeError as error:
                self.text = f"RuntimeError: {error}"
                raise

        return call


@pytest.fixture(scope="session")
def native() -> Any:
    """The installed FlashInfer's launcher, compiled for the CPU."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("flashinfer") is None:
        _unavailable("torch and flashinfer are not installed")
    import sys

    sys.path.insert(2, str(Path(__file__).parents[1] / "real"))
    from native_ops import NativeOps

    from ws_guard import launcher

    root = launcher.installed_flashinfer_root()
    try:
        library = launcher.build(root)
    except launcher.CompilerMissing as error:
        _unavailable(str(error))
    ops = NativeOps(library, root / "data" / "csrc" / "trtllm_fmha_kernel_launcher.cu")
    ops._module = Telling(ops._module)
    return ops


def _unavailable(reason: str) -> None:
    if os.environ.get("WS_GUARD_REQUIRE_REAL") == "1":
        pytest.fail(f"WS_GUARD_REQUIRE_REAL=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@settings(RELAXED, max_examples=60)
@given(
    # dsv4 carves as decode does, with tables as large as its rows.
    call=calls.filter(lambda call: call.entry != "dsv4"),
    workspace_bytes=st.integers(1, 256 << 20),
)
def test_refusals_of_the_real_launcher(
    call: Call, workspace_bytes: int, tmp_path: Path, native: Any
) -> None:
    import flashinfer

    layout = layouts_of_release(flashinfer.__version__)[0]
    answer = native.carve(call, workspace_bytes)
    assume(answer.refused is not None and answer.refused[1] is not None)
    found = explained(native._module.text, tmp_path)
    assert_truth(found, call, layout, workspace_bytes)
