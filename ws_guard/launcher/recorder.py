"""Reads what the stub runner wrote down instead of launching."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class _Record(ctypes.Structure):
    """The twin of `WsGuardRecord` in stub/flashinfer/trtllm/fmha/fmhaRunner.cuh."""

    _fields_ = (
        ("launches", ctypes.c_uint64),
        ("counter", ctypes.c_uint64),
        ("softmax_stats", ctypes.c_uint64),
        ("scratch", ctypes.c_uint64),
        ("lse", ctypes.c_uint64),
        ("batch", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("max_q_len", ctypes.c_int64),
        ("sum_q", ctypes.c_int64),
        ("sm_count", ctypes.c_int64),
        ("scratch_bytes", ctypes.c_int64),
    )


class Launch(NamedTuple):
    """What the launcher handed to the kernel: addresses (0: not handed over) and sizes.

    `ordinal` counts the launches of the thread from 1. `scratch_bytes` is what the kernel is told
    that it has, -1 in releases that do not tell it.
    """

    ordinal: int
    counter: int
    softmax_stats: int
    scratch: int
    lse: int
    batch: int
    heads: int
    max_q_len: int
    sum_q: int
    sm_count: int
    scratch_bytes: int


class Recorder:
    """The recorder of one compiled library; each thread has a record of its own."""

    def __init__(self, library: Path) -> None:
        self._read = ctypes.CDLL(str(library)).ws_guard_last_launch
        self._read.argtypes = [ctypes.POINTER(_Record)]
        self._read.restype = None

    def last(self) -> Launch | None:
        """The calling thread's last launch, None before its first one."""
        record = _Record()
        self._read(ctypes.byref(record))
        values = (getattr(record, name) for name, *_ in record._fields_)
        launch = Launch(*values)
        return launch if launch.ordinal else None
