"""A wheel installed elsewhere: no sources, no network, no compiler, no setting of this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ws_guard.version import __version__

if TYPE_CHECKING:
    from released import Dist, Elsewhere

pytestmark = pytest.mark.release

CRASH = ["--heads=64", "--tp=8", "--max-num-batched-tokens=16384", "--workspace-bytes=394MiB"]
CRASH += ["--sm-count=148", "--flashinfer=0.6.14", "--json"]


@pytest.mark.parametrize("kind", ["pure", "compiled"])
def test_the_command_line(kind: str, dist: Dist, elsewhere: Elsewhere) -> None:
    wheel = getattr(dist, kind)
    elsewhere.install(f"ws-guard[exporter] @ {wheel.as_uri()}")
    assert elsewhere.run("ws-guard", "--version").stdout == f"ws-guard {__version__}\n"

    crash = elsewhere.run("ws-guard", "plan", "--dcp=8", *CRASH)
    assert (crash.returncode, crash.stderr) == (1, "")
    # 394 MiB, less 8 MiB of counter and 8 * 64 * 16,384 * 256 + 1 MiB of statistics.
    margin = 394 * 2**20 - 8 * 2**20 - (8 * 64 * 16_384 * 256 + 2**20)
    assert json.loads(crash.stdout)["margin_bytes"] == margin == -1_743_781_888
    assert elsewhere.run("ws-guard", "plan", "--dcp=1", *CRASH).returncode == 0

    built = elsewhere.answer("from ws_guard.probe import hot; print(hot.is_built())")
    assert built == str(kind == "compiled")


@pytest.mark.parametrize("kind", ["pure", "compiled"])
def test_a_worker(kind: str, dist: Dist, elsewhere: Elsewhere) -> None:
    """The wheel alone: it attaches, its plugins are found, its command says what it needs."""
    elsewhere.install(getattr(dist, kind))
    program = (
        "import ws_guard; from pathlib import Path;"
        "probe = ws_guard.install(board='board', engine='0', rank=0);"
        "print(len(list(Path('board').glob('*.slot')))); probe.uninstall()"
    )
    assert elsewhere.answer(program) == "1"
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        found = "from importlib.metadata import entry_points as e;" + f"print(*e(group={group!r}))"
        assert "ws_guard.engines" in elsewhere.answer(found)
    refused = elsewhere.run("ws-guard", "plan")
    assert refused.returncode == 2
    assert refused.stderr == ("ws-guard: the command line needs pip install 'ws-guard[exporter]'\n")


def test_gone_again(dist: Dist, elsewhere: Elsewhere) -> None:
    elsewhere.install(dist.compiled)
    place = elsewhere.answer("import ws_guard; print(ws_guard.__path__[0])")
    done = elsewhere.run("python", "-m", "pip", "--isolated", "uninstall", "--yes", "ws-guard")
    assert done.returncode == 0, done.stderr
    assert elsewhere.answer(f"import os; print(os.path.exists({place!r}))") == "False"
    assert not (elsewhere.home / "bin" / "ws-guard").exists()
