"""What is done at the edge, seen from below: every launch under the real launcher, row by row.

Runs under any interpreter that has FlashInfer, without pytest: `python guard_calls.py BOARD`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from flashinfer_calls import MIB, PUBLIC_CALLS, TOP_K, Shape, workspace
from plain import plain
from probed_board import calls_by_mode, slots

from ws_guard.contract import installed_contract
from ws_guard.launcher import Recorder, build, installed_flashinfer_root, on_cpu
from ws_guard.probe import WorkspaceOverflowError, install
from ws_guard.sizing import DEFAULT_WORKSPACE_BYTES, OPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

HEADS = 64
DECODE = OPS["decode"]
ACTIONS = ("observe", "raise", "split")
#: The largest batch of 64 heads with LSE that 394 MiB hold, by layout.
FITS = {"B": 3_080, "C": 3_144}


class Launched(NamedTuple):
    """One call of the native function, and what the launcher made of it.

    `first` and `lines` say of each tensor with a line per row or token which lines it has of the
    caller's; `launch` is (batch, tokens) as the kernel was told, `lse_line` the line of the
    caller's LSE at the address that the kernel was given (-1: none).
    """

    batch: int
    pdl: bool
    first: dict[str, int]
    lines: dict[str, int]
    launch: tuple[int, int]
    lse_line: int


class Outcome(NamedTuple):
    """A step, and one that fits afterwards. `error` is (type, text), `told` the public attributes.

    `counts` by mode, `events` [kind, action, count] and `outcomes` of the ring's runs are those of
    the slot after both.
    """

    error: list[str]
    told: dict[str, Any]
    launched: list[Launched]
    later: list[Launched]
    counts: dict[str, int]
    events: list[list[Any]]
    outcomes: list[int]
    probe_errors: int


class Spy:
    """Stands before the native function and looks at what reaches it."""

    def __init__(self, native: Callable[..., Any], recorder: Recorder) -> None:
        self._native = native
        self._recorder = recorder
        self._names = installed_contract().signatures[DECODE]
        self.launched: list[Launched] = []
        self._bases: dict[str, tuple[int, int]] = {}

    def forget(self) -> None:
        """The next call is the first of a step: its tensors begin where the caller's do."""
        self.launched.clear()
        self._bases.clear()

    def __call__(self, *args: Any) -> Any:
        named = dict(zip(self._names, args, strict=True))
        before = self._recorder.last()
        result = self._native(*args)
        launch = self._recorder.last()
        assert launch is not None
        assert launch is not before
        tensors = {
            name: named[name]
            for name in ("out", "query", "block_tables", "seq_lens", "lse")
            if named[name] is not None
        }
        first = {name: self._line(name, tensor) for name, tensor in tensors.items()}
        lse_line = -1
        if named["lse"] is not None:
            start, width = self._bases["lse"]
            lse_line = (launch.lse - start) // width
        lines = {name: tensor.shape[0] for name, tensor in tensors.items()}
        told = launch.batch, launch.sum_q
        self.launched.append(
            Launched(named["batch_size"], named["enable_pdl"], first, lines, told, lse_line)
        )
        return result

    def _line(self, name: str, tensor: torch.Tensor) -> int:
        width = tensor.stride(0) * tensor.itemsize
        start, _ = self._bases.setdefault(name, (tensor.data_ptr(), width))
        line, rest = divmod(tensor.data_ptr() - start, width)
        assert rest == 0
        return line


@contextlib.contextmanager
def spied(recorder: Recorder, path: str, action: str) -> Iterator[Spy]:
    """The probe with an action, over a spy in every native module that is loaded."""
    import tvm_ffi

    gc.collect()
    modules = [m for m in gc.get_objects() if type(m) is tvm_ffi.Module and DECODE in vars(m)]
    natives = [vars(module)[DECODE] for module in modules]
    spy = Spy(natives[0], recorder)
    for module in modules:
        setattr(module, DECODE, spy)
    probe = install(board=path, on_overflow=action)
    try:
        yield spy
    finally:
        probe.uninstall()
        for module, native in zip(modules, natives, strict=True):
            assert vars(module)[DECODE] is spy
            setattr(module, DECODE, native)


def step(shape: Shape, buffer: torch.Tensor, *, sparse: bool = True) -> Callable[[], Any]:
    """A decode step of MLA whose block tables have a line of their own for every row."""
    import torch

    if not sparse:
        return PUBLIC_CALLS["dense_mla"].build(shape, buffer)
    table = torch.empty(shape.batch, shape.q_len, TOP_K, dtype=torch.int32)
    return functools.partial(PUBLIC_CALLS["sparse_mla"].build(shape, buffer), block_tables=table)


def play(
    path: str, recorder: Recorder, action: str, call: Callable[[], Any], later: Callable[[], Any]
) -> Outcome:
    """Make a step under an action, and one that fits."""
    with spied(recorder, path, action) as spy:
        error, told = ["", ""], {}
        try:
            call()
        except RuntimeError as raised:
            error = [type(raised).__name__, str(raised)]
            told = dict(vars(raised)) if isinstance(raised, WorkspaceOverflowError) else {}
        launched = list(spy.launched)
        spy.forget()
        later()
        (slot,) = slots(path)
        events = [[kind, name, count] for (_, kind, name), count in slot.events.items()]
        outcomes = [each.outcome for each in slot.calls]
        counts = calls_by_mode(slot)
        errors = slot.probe_errors
        return Outcome(error, told, launched, list(spy.launched), counts, events, outcomes, errors)


def steps(buffer: torch.Tensor, fits: int) -> dict[str, Callable[[], Any]]:
    """Steps that do not fit, by name; `fits` is the largest that does."""
    return {
        "reported": step(Shape(12_288, HEADS, lse=True), buffer),
        "one more": step(Shape(fits + 1, HEADS, lse=True), buffer),
        "two tokens": step(Shape(fits + 1, HEADS, q_len=2, lse=True), buffer),
        "dense": step(Shape(fits + 1, HEADS, lse=True), buffer, sparse=False),
        "two tokens dense": step(Shape(2 * fits, HEADS, q_len=2, lse=True), buffer, sparse=False),
    }


def report(path: str) -> dict[str, Any]:
    """Every step under every action, and what cannot be split."""
    import flashinfer

    layout = installed_contract().layout
    assert layout is not None
    with on_cpu(build(installed_flashinfer_root())) as recorder:
        buffer = workspace(DEFAULT_WORKSPACE_BYTES)
        later = step(Shape(24, HEADS, lse=True), buffer)
        # Loads the native modules, before the probe comes.
        later()
        PUBLIC_CALLS["context"].build(Shape(4, HEADS), buffer)()
        done = {
            name: {action: play(path, recorder, action, call, later) for action in ACTIONS}
            for name, call in steps(buffer, FITS[layout.name]).items()
        }
        small = workspace(MIB)
        # 12 MiB: 74 rows of 64 heads leave too little for the scratch that long KV takes. Layout B,
        # whose counter takes 8 MiB, leaves 4 MiB without LSE.
        scarce = step(Shape(74, HEADS, lse=layout.name == "C"), workspace(12 * MIB))
        overrun = functools.partial(scarce, max_seq_len=TOP_K)
        done["overrun"] = {
            action: play(path, recorder, action, overrun, later) for action in ACTIONS
        }
        others = {
            name: play(path, recorder, "split", call, later)
            for name, call in (
                ("context", PUBLIC_CALLS["context"].build(Shape(64, HEADS, lse=True), small)),
                ("ragged", PUBLIC_CALLS["ragged"].build(Shape(64, HEADS, lse=True), small)),
                ("dsv4", PUBLIC_CALLS["dsv4"].build(Shape(64, HEADS), small)),
                ("pieces too small", step(Shape(12_288, HEADS, lse=True), small)),
            )
        }
        return {
            "release": flashinfer.__version__,
            "layout": layout.name,
            "done": done,
            "others": others,
        }


if __name__ == "__main__":
    print(json.dumps(plain(report(sys.argv[1]))))
