"""However large a log is, it is read in little memory: measured in a process of its own.

500 MB with WS_GUARD_NIGHTLY=1 (`make nightly`), less otherwise.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.explain import CRASH, write_log

if TYPE_CHECKING:
    from pathlib import Path

LOG_BYTES = 500_000_000 if os.environ.get("WS_GUARD_NIGHTLY") == "1" else 60_000_000
MOST_KIB = 60 * 1_000_000 // 1_024
#: Says what the interpreter needed at most, in KiB, behind the answer.
_SCRIPT = (
    "import resource, sys; from ws_guard.cli import run; code = run(['explain', '--json', '-']); "
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(code)"
)


def explain(path: Path) -> tuple[dict[str, object], int]:
    """The answer, and the memory in KiB."""
    # Through a shell: a process that pytest starts would inherit pytest's own peak.
    command = f"{sys.executable} -c \"{_SCRIPT}\" < '{path}'; exit $?"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["findings"][0], int(done.stderr.split()[-1])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "engine.log"
    write_log(path, LOG_BYTES)
    return path


def test_large_log(log: Path) -> None:
    found, memory = explain(log)
    assert (found["size"], found["ranks"]) == (1_611_661_312, ["Worker_TP3_DCP3"])
    assert memory < MOST_KIB


def test_large_packed_log(log: Path) -> None:
    packed = log.with_suffix(".gz")
    with log.open("rb") as plain, gzip.open(packed, "wb", compresslevel=1) as out:
        shutil.copyfileobj(plain, out, 1 << 20)
    found, memory = explain(packed)
    assert found["size"] == 1_611_661_312
    assert memory < MOST_KIB


def test_log_without_a_line_break(tmp_path: Path) -> None:
    path = tmp_path / "endless"
    with path.open("w") as log:
        for _ in range(LOG_BYTES // 1_000_000):
            log.write("no line ends here " * 55_556)
        log.write(CRASH.rstrip("\n"))
    found, memory = explain(path)
    assert found["size"] == 1_611_661_312
    assert memory < MOST_KIB


@pytest.mark.parametrize(
    "line",
    [CRASH, CRASH.replace("1611661312", "{number}"), "{number} and alignment AlignedAllocator\n"],
    ids=["one_fault", "many_faults", "near_misses"],
)
def test_nothing_but_faults(line: str, tmp_path: Path) -> None:
    path = tmp_path / "faults"
    with path.open("w") as log:
        log.write(CRASH)
        for number in range(min(LOG_BYTES, 20_000_000) // len(line)):
            log.write(line.replace("{number}", str(2_048 * number + 1_048_576 + (1 << 34))))
    found, memory = explain(path)
    assert found["size"] == 1_611_661_312
    assert memory < MOST_KIB
