"""What is no call that the probe understands: it reaches the native function, and harms nobody."""

from __future__ import annotations

import logging
import weakref
from typing import Any, NoReturn

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch
from native_calls import (
    REFUSED_BATCH,
    Watched,
    decode_arguments,
    nothing,
    workspace,
)
from slot_views import ReadSlot, eager


class UnspeakableError(Exception):
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
    "workspace whose error has no text": {"workspace_buffer": Hostile(UnspeakableError)},
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
    error = UnspeakableError()

    def native(*_args: object) -> NoReturn:
        raise error

    for batch in (16, REFUSED_BATCH):
        with pytest.raises(UnspeakableError) as raised:
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
