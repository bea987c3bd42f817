"""Puts lines of a process into the shapes in which people have them: the wraps around a message."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_STAMP = "2026-07-05T12:00:01.123456789Z"


def plain(lines: list[str]) -> bytes:
    return _joined(lines)


def crlf(lines: list[str]) -> bytes:
    return "\r\n".join([*lines, ""]).encode()


def vllm(lines: list[str]) -> bytes:
    """Two ranks that write at the same time, every line with its prefix."""
    header = "ERROR 07-05 12:00:01 [multiproc_executor.py:822]"
    return _joined(
        f"(Worker_TP{rank}_DCP{rank} pid={900 + rank}) {header} {line}"
        for line in lines
        for rank in (0, 1)
    )


def sglang(lines: list[str]) -> bytes:
    return _joined(f"[2025-11-20 16:40:55 TP{rank}] {line}" for rank in (0, 1) for line in lines)


def coloured(lines: list[str]) -> bytes:
    return _joined(f"\x1b[1;36m(Worker_TP0 pid=9)\x1b[0;0m \x1b[31m{line}\x1b[0m" for line in lines)


def json_lines(lines: list[str]) -> bytes:
    return _joined(
        json.dumps({"time": _STAMP, "level": "error", "message": line, "pod": "engine-0"})
        for line in lines
    )


def docker(lines: list[str]) -> bytes:
    return _joined(
        json.dumps({"log": f"{line}\n", "stream": "stderr", "time": _STAMP}) for line in lines
    )


def docker_split(lines: list[str]) -> bytes:
    """Docker cuts long lines: a part has no line break at its end."""
    parts = []
    for line in lines:
        middle = len(line) // 2
        parts += [line[:middle], f"{line[middle:]}\n"]
    return _joined(json.dumps({"log": part, "stream": "stderr", "time": _STAMP}) for part in parts)


def cri(lines: list[str]) -> bytes:
    return _joined(f"{_STAMP} stderr F {line}" for line in lines)


def cri_split(lines: list[str]) -> bytes:
    """The runtime cuts long lines wherever it wants: P is a part, F the last one."""
    parts = []
    for line in lines:
        third = max(1, len(line) // 3)
        parts += [f"P {line[:third]}", f"P {line[third : 2 * third]}", f"F {line[2 * third :]}"]
    return _joined(f"{_STAMP} stderr {part}" for part in parts)


def kubectl(lines: list[str]) -> bytes:
    """`kubectl logs --prefix --timestamps -l app=engine`."""
    return _joined(
        f"[pod/engine-{pod}/vllm] {_STAMP} (Worker_TP0 pid=7) {line}"
        for line in lines
        for pod in (0, 1)
    )


def journald(lines: list[str]) -> bytes:
    return _joined(f"Jul 05 12:00:01 node-3 vllm[4711]: {line}" for line in lines)


def journald_json(lines: list[str]) -> bytes:
    """`journalctl -o json`: a message with colours is a list of bytes there."""
    return _joined(
        json.dumps(
            {"_HOSTNAME": "node-3", "MESSAGE": list(f"\x1b[31m{line}\x1b[0m".encode())},
            separators=(",", ":"),
        )
        for line in lines
    )


def wrapped(lines: list[str]) -> bytes:
    """As people paste it: broken at spaces, the rest indented."""
    return _joined(
        line.replace(" with size", "\n  with size").replace(", but only", ",\n  but only")
        for line in lines
    )


def utf16(lines: list[str]) -> bytes:
    """What `command > file` writes in PowerShell."""
    return "\r\n".join([*lines, ""]).encode("utf-16")


def gzipped(lines: list[str]) -> bytes:
    return gzip.compress(vllm(lines))


def _joined(lines: object) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


FORMATS: tuple[Callable[[list[str]], bytes], ...] = (
    plain,
    crlf,
    vllm,
    sglang,
    coloured,
    json_lines,
    docker,
    docker_split,
    cri,
    cri_split,
    kubectl,
    journald,
    journald_json,
    wrapped,
    utf16,
    gzipped,
)
