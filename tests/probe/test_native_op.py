"""The wrapper around a native op: it counts, and is otherwise not there."""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import os
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("flashinfer") is None:
    pytest.skip("flashinfer is not installed", allow_module_level=True)

from native_calls import DECODE, MIB, Watched, decode_arguments, watch, workspace  # noqa: E402

from ws_guard.board import OVERFLOW, Outcome, SlotView  # noqa: E402
from ws_guard.board.format import EXACT_ROWS, RING_RUNS, Header  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws_guard.probe.recorder import Recorder

    ReadSlot = Callable[[], SlotView]

#: What FlashInfer 0.6.14 says of 3,081 rows in 394 MiB; the native functions here raise it.
REFUSAL = (
    "Error in function 'aligned_alloc' at include/flashinfer/allocator.h:49: Buffer overflow when "
    "allocating memory for trtllm_gen_softmax_workspace with size 404881408 and alignment 16, but "
    "only 404750336 bytes available in AlignedAllocator. Increase the workspace buffer size."
)
#: Refused by every layout: its stats alone are larger than the workspace.
REFUSED_BATCH = 12_288


@pytest.fixture
def watched(recorder: Recorder) -> Watched:
    return watch(recorder)


def nothing(*_args: object) -> None:
    """The cheapest native function there is."""


def eager(slot: SlotView) -> int:
    return sum(row.eager for row in slot.rows)


# -- what is passed through ------------------------------------------------------------------------


def test_arguments_and_result_pass_through(watched: Watched) -> None:
    result, seen = object(), []
    op = watched.over(lambda *args: (seen.append(args), result)[1])
    arguments = decode_arguments(16, workspace())
    for _ in range(3):
        assert op(*arguments) is result
    assert len(seen) == 3
    assert all(given is got for args in seen for given, got in zip(arguments, args, strict=True))


@pytest.mark.parametrize("batch", [16, REFUSED_BATCH], ids=["known", "foreseen"])
@pytest.mark.parametrize(
    "error", [RuntimeError(REFUSAL), ValueError("no such dtype"), KeyboardInterrupt()], ids=repr
)
def test_native_error_is_the_same_object(
    batch: int, error: BaseException, watched: Watched
) -> None:
    def native(*_args: object) -> NoReturn:
        raise error

    error.__traceback__ = error.__context__ = None
    with pytest.raises(type(error)) as raised:
        watched.over(native)(*decode_arguments(batch, workspace()))
    assert raised.value is error
    assert error.__context__ is None
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names[-1] == "native"


def test_computed_attention_is_that_without_the_probe(watched: Watched) -> None:
    generator = torch.Generator().manual_seed(7)
    arguments = decode_arguments(3, workspace(64 * MIB), heads=16)
    cache = torch.randn(16, 1, 64, 576, generator=generator)
    real = {
        "query": torch.randn(3, 16, 576, generator=generator),
        "key_cache": cache,
        "value_cache": cache,
        "block_tables": torch.randint(0, 1024, (3, 1, 2048), generator=generator).int(),
        "seq_lens": torch.full((3,), 2048, dtype=torch.int32),
    }
    arguments[watched.at("bmm1_scale")] = 576**-0.5
    for name, tensor in real.items():
        arguments[watched.at(name)] = tensor
    results = []
    for op in (watched.reference(), watched.over(watched.reference())):
        out, lse = torch.zeros(3, 1, 16, 512), torch.zeros(3, 16)
        arguments[watched.at("out")], arguments[watched.at("lse")] = out, lse
        op(*arguments)
        results.append((out, lse))
    (out, lse), (probed_out, probed_lse) = results
    assert out.abs().sum() > 0
    # Not bit by bit: where its tensors happen to lie decides the order in which torch adds up.
    torch.testing.assert_close((probed_out, probed_lse), (out, lse), rtol=1e-3, atol=1e-4)


# -- what is counted -------------------------------------------------------------------------------


def test_call_is_counted_with_its_shape(watched: Watched, slot: ReadSlot) -> None:
    buffer = workspace()
    op = watched.over(nothing)
    for _ in range(5):
        op(*decode_arguments(16, buffer))
    (row,) = slot().rows
    shape = row.shape
    assert row.eager == 5
    assert slot().document["ops"][shape.op] == DECODE
    assert (shape.batch, shape.heads, shape.q_len, shape.lse) == (16, 64, 1, True)
    assert (shape.workspace_bytes, shape.address_mod_16) == (394 * MIB, buffer.data_ptr() % 16)
    assert (shape.qk, shape.vo, shape.top_k, shape.sm_count) == (576, 512, 2048, 148)


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 17},
        {"heads": 32},
        {"lse": False},
        {"workspace": workspace(64 * MIB)},
        {"workspace": workspace()},
        {"top_k": 0},
    ],
    ids=["batch", "heads", "lse", "workspace size", "workspace", "top-k"],
)
def test_what_decides_a_carve_tells_shapes_apart(
    change: dict[str, Any], watched: Watched, slot: ReadSlot
) -> None:
    usual = {"batch": 16, "workspace": workspace()}
    op = watched.over(nothing)
    for options in (usual, usual | change) * 10:
        for _ in range(3):
            op(*decode_arguments(**options))
    assert [row.eager for row in slot().rows] == [30, 30]


def test_ring_holds_the_last_runs_in_order(watched: Watched, slot: ReadSlot) -> None:
    """Steps of 5 calls each, as of a model of 5 layers, of three batches in turn."""
    op, buffer = watched.over(nothing), workspace()
    calls = [decode_arguments(batch, buffer) for batch in (1, 2, 3)]
    for n in range(RING_RUNS + 50):
        for _ in range(5):
            op(*calls[n % 3])
    told = slot().calls
    assert [call.shape.batch for call in told] == [1 + n % 3 for n in range(50, RING_RUNS + 50)]
    assert sorted(call.at_ns for call in told) == [call.at_ns for call in told]
    assert eager(slot()) == 5 * (RING_RUNS + 50)


def test_last_call_is_known_to_the_moment(watched: Watched, slot: ReadSlot) -> None:
    """The ring has the run; when its last call was stands in the header."""
    op, arguments = watched.over(nothing), decode_arguments(16, workspace())
    for _ in range(10):
        before = time.time_ns()
        op(*arguments)
        after = time.time_ns()
        (call,) = slot().calls
        # Two clocks, read one after the other at the start, and a float of seconds.
        assert before - 1_000_000 <= call.at_ns <= after + 1_000_000


def test_views_of_one_workspace_are_one_workspace(watched: Watched, slot: ReadSlot) -> None:
    """SGLang makes a view for each call: another tensor object at the same address."""
    op, buffer = watched.over(nothing), workspace()
    for _ in range(10):
        op(*decode_arguments(16, buffer.view(-1)))
    assert [row.eager for row in slot().rows] == [10]
    assert len(slot().calls) == 1


def test_batches_within_one_shape_of_query_are_told_apart(watched: Watched, slot: ReadSlot) -> None:
    """Batch and query length are arguments of their own: only their product shows in the query."""
    op, arguments = watched.over(nothing), decode_arguments(16, workspace())
    for batch, q_len in ((16, 1), (8, 2), (4, 4)) * 10:
        arguments[watched.at("batch_size")] = batch
        arguments[watched.at("max_q_len")] = q_len
        op(*arguments)
    shapes = [(row.shape.batch, row.shape.q_len, row.eager) for row in slot().rows]
    assert shapes == [(16, 1, 10), (8, 2, 10), (4, 4, 10)]


def test_refusal_is_on_the_board_before_the_call(watched: Watched, slot: ReadSlot) -> None:
    """Should the process die of it, the board has it."""
    seen = []

    def native(*_args: object) -> NoReturn:
        seen.append(slot())
        raise RuntimeError(REFUSAL)

    op = watched.over(native)
    for count in (1, 2):
        with pytest.raises(RuntimeError):
            op(*decode_arguments(REFUSED_BATCH, workspace()))
        for told in (seen.pop(), slot()):
            assert told.events == {(0, OVERFLOW, "observed"): count}
            assert told.calls[-1].outcome == Outcome.OVERFLOW
    assert slot().probe_errors == 0


def test_reference_refusals_are_foreseen(watched: Watched, slot: ReadSlot) -> None:
    op = watched.over(watched.reference())
    buffer = torch.empty(394 * MIB, dtype=torch.uint8, device="meta")

    def refuses(batch: int) -> bool:
        try:
            op(*decode_arguments(batch, buffer))
        except RuntimeError:
            return True
        return False

    refused = sum(map(refuses, [3079, 3080, 3081, 3143, 3144, 3145, 3146]))
    # Layout B accepts 3,080 rows, layout C 3,144.
    assert watched.contract.layout is not None
    assert refused == {"B": 5, "C": 2}[watched.contract.layout.name]
    assert list(slot().events.values()) == [refused]
    assert slot().probe_errors == 0


def test_foreseen_refusal_that_does_not_come_is_taken_back(
    watched: Watched, slot: ReadSlot, caplog: pytest.LogCaptureFixture
) -> None:
    op = watched.over(lambda *_args: "computed")
    for count in (1, 2):
        assert op(*decode_arguments(REFUSED_BATCH, workspace())) == "computed"
        told = slot()
        assert (told.events, told.last_overflow_ns, told.probe_errors) == ({}, 0, count)
    (line,) = caplog.messages
    assert "was foreseen to be refused and was not" in line


def test_one_taken_back_leaves_the_others(watched: Watched, slot: ReadSlot) -> None:
    answers = iter([RuntimeError(REFUSAL), None])

    def native(*_args: object) -> None:
        answer = next(answers)
        if answer is not None:
            raise answer

    op, arguments = watched.over(native), decode_arguments(REFUSED_BATCH, workspace())
    with pytest.raises(RuntimeError):
        op(*arguments)
    op(*arguments)
    assert list(slot().events.values()) == [1]
    assert slot().last_overflow_ns > 0


def test_foreseen_refusal_that_another_error_forestalls_is_taken_back(
    watched: Watched, slot: ReadSlot
) -> None:
    def native(*_args: object) -> NoReturn:
        raise ValueError("no such dtype")

    with pytest.raises(ValueError, match="no such dtype"):
        watched.over(native)(*decode_arguments(REFUSED_BATCH, workspace()))
    assert (slot().events, slot().last_overflow_ns, slot().probe_errors) == ({}, 0, 0)


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        (REFUSAL, 1),
        ("Check failed: (static_cast<size_t>(multi_ctas_kv_counter_size) >= counter_bytes)", 1),
        ("CUDA error: an illegal memory access was encountered", 0),
        (REFUSAL.replace("trtllm_gen_softmax_workspace", "batch_prefill_tmp_v"), 0),
    ],
)
def test_refusal_that_was_not_foreseen_is_counted(
    text: str, counted: int, watched: Watched, slot: ReadSlot
) -> None:
    def native(*_args: object) -> NoReturn:
        raise RuntimeError(text)

    with pytest.raises(RuntimeError):
        watched.over(native)(*decode_arguments(16, workspace()))
    assert sum(slot().events.values()) == counted
    assert slot().probe_errors == counted


def test_refusal_within_the_autotuner_is_no_event(watched: Watched, slot: ReadSlot) -> None:
    def native(*_args: object) -> NoReturn:
        raise RuntimeError(REFUSAL)

    watched.tuning._note(True)
    for batch in (16, REFUSED_BATCH):
        with pytest.raises(RuntimeError):
            watched.over(native)(*decode_arguments(batch, workspace()))
    told = slot()
    assert (told.events, told.last_overflow_ns, told.probe_errors) == ({}, 0, 0)
    assert [(row.eager, row.tuning) for row in told.rows] == [(0, 1), (0, 1)]


def test_known_shape_within_the_autotuner_is_no_traffic(watched: Watched, slot: ReadSlot) -> None:
    op, arguments = watched.over(nothing), decode_arguments(16, workspace())
    for tuning in (False, True, False):
        watched.tuning._note(tuning)
        for _ in range(10):
            op(*arguments)
    (row,) = slot().rows
    assert (row.eager, row.tuning) == (20, 10)
    outcomes = [call.outcome for call in slot().calls]
    assert outcomes == [Outcome.EAGER, Outcome.TUNING, Outcome.EAGER]


# -- what goes wrong inside ------------------------------------------------------------------------


class Unspeakable(Exception):  # noqa: N818
    """An error that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Hostile:
    """A workspace that raises whatever it is asked."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def data_ptr(self) -> int:
        raise self._error


GARBAGE: dict[str, dict[str, Any]] = {
    "workspace without an address": {"workspace_buffer": object()},
    "workspace that raises": {"workspace_buffer": Hostile(ValueError)},
    "workspace whose error has no text": {"workspace_buffer": Hostile(Unspeakable)},
    "query of two dims": {"query": torch.empty(16, 576, device="meta")},
    "query of four dims": {"query": torch.empty(16, 1, 64, 576, device="meta")},
    "no query": {"query": None},
    "no output": {"out": None},
    "batch that is a tensor": {"batch_size": torch.tensor(16)},
    "batch that is no number": {"batch_size": [16]},
    "size that is a float": {"workspace_size": 1.5},
    "no SM count": {"sm_count": None},
    "KV length that is a tensor": {"max_kv_len": torch.tensor(2048)},
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_reaches_the_native_function_untouched(
    name: str, watched: Watched, slot: ReadSlot, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = decode_arguments(16, workspace())
    for parameter, value in GARBAGE[name].items():
        arguments[watched.at(parameter)] = value
    seen: list[tuple[Any, ...]] = []
    op = watched.over(lambda *args: seen.append(args))
    for _ in range(3):
        op(*arguments)
    assert [[id(each) for each in args] for args in seen] == [[id(each) for each in arguments]] * 3
    assert slot().probe_errors == 3
    assert len(caplog.messages) == ("no text" not in name)
    # A later call of the usual kind is counted as ever.
    op(*decode_arguments(16, workspace()))
    assert eager(slot()) == 1


def test_empty_step_is_no_error(watched: Watched, slot: ReadSlot) -> None:
    """Idle data-parallel ranks step with no rows; the real launcher carves no stats then."""
    op = watched.over(nothing)
    for _ in range(10):
        op(*decode_arguments(0, workspace(512)))
    assert eager(slot()) == 10
    assert (slot().events, slot().probe_errors) == ({}, 0)


@pytest.mark.parametrize("count", [0, 3, 29, 60])
def test_wrong_number_of_arguments_is_the_native_functions_matter(
    count: int, watched: Watched, slot: ReadSlot
) -> None:
    arguments = (decode_arguments(16, workspace()) * 2)[:count]
    with pytest.raises(TypeError, match=f"Expected .* but got {count} arguments"):
        watched.over(watched.reference())(*arguments)
    assert slot().probe_errors == 1
    assert eager(slot()) == 0


def test_log_handler_that_raises_harms_nobody(watched: Watched, slot: ReadSlot) -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> NoReturn:
            raise OSError(f"no space left for {record.msg}")

    log = logging.getLogger("ws_guard")
    handler = Handler()
    log.addHandler(handler)
    try:
        op = watched.over(lambda *_args: "computed")
        assert op() == "computed"
        assert op(*decode_arguments(REFUSED_BATCH, workspace())) == "computed"
    finally:
        log.removeHandler(handler)
    assert slot().probe_errors == 2


def test_error_whose_text_raises_passes_unchanged(watched: Watched) -> None:
    error = Unspeakable()

    def native(*_args: object) -> NoReturn:
        raise error

    for batch in (16, REFUSED_BATCH):
        with pytest.raises(Unspeakable) as raised:
            watched.over(native)(*decode_arguments(batch, workspace()))
        assert raised.value is error


@pytest.mark.parametrize("name", [*GARBAGE, "nothing", "refused"])
def test_no_argument_is_kept_alive(name: str, watched: Watched) -> None:
    arguments = decode_arguments(REFUSED_BATCH if name == "refused" else 16, workspace())
    for parameter, value in GARBAGE.get(name, {}).items():
        # A copy of its own: the table above keeps the original.
        tensor = isinstance(value, torch.Tensor)
        arguments[watched.at(parameter)] = value.clone() if tensor else value
    op = watched.over(nothing)
    for _ in range(2):
        op(*arguments)
    alive = [weakref.ref(each) for each in arguments if isinstance(each, torch.Tensor)]
    assert len(alive) >= 7
    del arguments
    assert [each() for each in alive if each() is not None] == []


# -- many threads, many shapes ---------------------------------------------------------------------


def in_threads(count: int, target: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=target, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_eight_threads_lose_no_call(watched: Watched, slot: ReadSlot) -> None:
    op, buffer, each = watched.over(nothing), workspace(), 1_000_000
    calls = [decode_arguments(batch, buffer) for batch in (16, 17)]

    def work(number: int) -> None:
        arguments = calls[number % 2]
        for _ in range(each):
            op(*arguments)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        in_threads(8, work)
    finally:
        sys.setswitchinterval(interval)
    assert [row.eager for row in slot().rows] == [4 * each, 4 * each]
    assert slot().probe_errors == 0


def test_new_shapes_from_many_threads_are_exact(watched: Watched, slot: ReadSlot) -> None:
    op, buffer = watched.over(nothing), workspace(1 << 30)

    def work(number: int) -> None:
        for batch in range(1, 301):
            op(*decode_arguments(batch, buffer, lse=number % 2 == 0))

    in_threads(8, work)
    assert [row.eager for row in slot().rows] == [4] * 600


def test_20_000_shapes_stay_exact_in_a_bounded_file(
    watched: Watched, slot: ReadSlot, recorder: Recorder
) -> None:
    op, buffer = watched.over(nothing), torch.empty(0, dtype=torch.uint8)
    arguments = decode_arguments(1, buffer)
    arguments[watched.at("workspace_size")] = 1 << 40
    batches = range(1, 20_001)
    for _ in range(2):
        for batch in batches:
            arguments[watched.at("batch_size")] = batch
            op(*arguments)
    told = slot()
    exact = [row for row in told.rows if not row.folded]
    folded = [row for row in told.rows if row.folded]
    assert [(row.shape.batch, row.eager) for row in exact] == [
        (batch, 2) for batch in batches[:EXACT_ROWS]
    ]
    # 14,465 to 16,384 and 16,385 to 20,000: two powers of two.
    assert [(row.eager, row.sum_eager) for row in folded] == [
        (2 * (16_384 - EXACT_ROWS), 2 * sum(range(EXACT_ROWS + 1, 16_385))),
        (2 * (20_000 - 16_384), 2 * sum(range(16_385, 20_001))),
    ]
    assert recorder.slot.path is not None
    assert Path(recorder.slot.path).stat().st_size <= 2 << 20


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forks_under_a_running_thread_lose_no_call(
    watched: Watched, recorder: Recorder, slot: ReadSlot
) -> None:
    op, arguments, each = watched.over(nothing), decode_arguments(16, workspace()), 200_000

    def child() -> None:
        recorder.forget_slot()
        op(*arguments)

    context = multiprocessing.get_context("fork")
    thread = threading.Thread(target=lambda: [op(*arguments) for _ in range(each)])
    thread.start()
    children = []
    while thread.is_alive() and len(children) < 10:
        children.append(context.Process(target=child, daemon=True))
        children[-1].start()
    for process in children:
        process.join(timeout=60)
    thread.join()
    assert {process.exitcode for process in children} == {0}
    assert (slot().pid, eager(slot()), slot().probe_errors) == (os.getpid(), each, 0)


def test_slot_closed_under_running_threads(watched: Watched, recorder: Recorder) -> None:
    op, arguments = watched.over(lambda *_args: 7), decode_arguments(16, workspace())
    wrong: list[object] = []
    closed = threading.Event()

    def work(_number: int) -> None:
        after = 0
        while after < 1000:
            try:
                if op(*arguments) != 7:
                    wrong.append("result")
            except Exception as error:  # noqa: BLE001 - any is one too many
                wrong.append(error)
            after += closed.is_set()

    def close_soon(number: int) -> None:
        if number:
            return work(number)
        while not watched.ledger.known:
            pass
        recorder.close()
        return closed.set()

    in_threads(5, close_soon)
    assert wrong == []
    # A call that was under way is no error of the probe.
    assert recorder.slot.words[Header.PROBE_ERRORS] == 0
