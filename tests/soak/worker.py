"""The processes of the soak's workers: forked from one that has torch and FlashInfer loaded.

Started by `crew`: a JSON line on standard input forks a worker, a line on standard output tells
that one was forked or has ended. Workers take their orders from their books.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "probe"))
sys.path.insert(2, str(Path(__file__).parents[1] / "real"))

from book import Book, Header, Order, State
from native_ops import NativeOps
from traffic import Traffic

import ws_guard
from ws_guard import contract, launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_LOOK_SECONDS = 0.02
_LAUNCHER = Path("data/csrc/trtllm_fmha_kernel_launcher.cu")


class Life(NamedTuple):
    """What a worker is to be: as `crew` sends it."""

    board: str
    book: str
    rank: int
    on_overflow: str
    seed: int
    calls_per_second: float
    handles_sigterm: bool
    always_fresh: bool


def main() -> int:
    """Fork workers as told, and tell of their ends, until standard input ends."""
    import flashinfer.decode
    import flashinfer.mla
    import flashinfer.prefill  # noqa: F401 - all that the workers will use, loaded once
    import torch

    torch.set_num_threads(1)
    root = launcher.installed_flashinfer_root()
    library = launcher.build(root)
    with launcher.on_cpu(library):
        _say(ready=True)
        told, living = b"", set[int]()
        while True:
            if select.select([0], [], [], _LOOK_SECONDS)[0]:
                read = os.read(0, 65_536)
                if not read:
                    break
                told += read
            while b"\n" in told:
                line, _, told = told.partition(b"\n")
                life = Life(**json.loads(line))
                child = os.fork()
                if child == 0:
                    return _live(life, lambda: NativeOps(library, root / _LAUNCHER))
                living.add(child)
                _say(forked=child, rank=life.rank)
            living -= _reap()
        for child in living:
            os.kill(child, signal.SIGKILL)
    return 0


def _reap() -> set[int]:
    """Tell of the workers that have ended; which."""
    ended = set()
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            _say(ended=found[0], code=os.waitstatus_to_exitcode(found[1]))
            ended.add(found[0])
    return ended


def _live(life: Life, native: Callable[[], NativeOps]) -> int:
    """One worker, from attaching to its end; the exit is Python's own."""
    book = Book(Path(life.book))
    words = book.words
    words[Header.PID] = os.getpid()
    if life.handles_sigterm:

        def stop(_signal: int, _frame: FrameType | None) -> None:
            words[Header.ORDER] = max(words[Header.ORDER], Order.STOP)

        signal.signal(signal.SIGTERM, stop)
    with _attached(life, book, native) as traffic:
        words[Header.STATE] = State.CALLING
        _call(life, book, traffic)
    words[Header.STATE] = State.STOPPED
    parent = os.getppid()
    while words[Header.ORDER] != Order.EXIT and os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    return 0


@contextlib.contextmanager
def _attached(life: Life, book: Book, native: Callable[[], NativeOps]) -> Iterator[Traffic]:
    from flashinfer.jit.attention.modules import gen_trtllm_gen_fmha_module
    from graph_stage import Cuda, torch_graphs

    found = contract.installed_contract()
    assert found.layout is not None, found.reason
    cuda = Cuda()
    with torch_graphs(cuda) as graphs:
        plan = ws_guard.plan(heads=64, max_num_batched_tokens=3_000)
        ws_guard.install(
            plan=plan, on_overflow=life.on_overflow, board=life.board, engine="0", rank=life.rank
        )
        module = gen_trtllm_gen_fmha_module().build_and_load()
        layout = found.layout.name
        # Loaded after the probe came, and not by FlashInfer: nobody looks at what is asked of it.
        traffic = Traffic(native(), module, layout, book, life.on_overflow, life.seed)
        traffic.capture_graphs(cuda, graphs)
        yield traffic


def _call(life: Life, book: Book, traffic: Traffic) -> None:
    """Steps at the rate that was asked for, until told to stop; what was missed is caught up."""
    words, made, started, parent = book.words, 0, time.monotonic(), os.getppid()
    while words[Header.ORDER] == Order.CALL and os.getppid() == parent:
        made += traffic.step(always_fresh=life.always_fresh)
        ahead = started + made / life.calls_per_second - time.monotonic()
        words[Header.LATE_MS] = max(words[Header.LATE_MS], round(-1000 * min(0.0, ahead)))
        if ahead > 0:
            time.sleep(ahead)


def _say(**what: object) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
