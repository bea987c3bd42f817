"""What these tests share: the programs they need, and the play that several of them look at."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# The helpers beside this file also run without pytest, as plain modules of one another.
sys.path.insert(0, str(Path(__file__).parent))

from places import ARTEFACTS, ENVIRONMENT, NEWEST_PYTHON, needed, unavailable
from play import Played, play

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """`program(name)`: the path of an installed program, or the end of the test."""

    def find(name: str) -> str:
        found = shutil.which(str(ENVIRONMENT / "bin" / name)) or shutil.which(name)
        if found is None:
            unavailable(f"{name} is not installed: make test-observability tries to")
        return found

    return find


@pytest.fixture(scope="session")
def judge(program: Callable[[str], str]) -> Callable[..., str]:
    """`judge(program, *arguments)`: what it printed; the test fails unless it is content."""

    def run(name: str, *arguments: str | Path, **options: str) -> str:
        done = subprocess.run(
            [program(name), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            **options,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def asked() -> Callable[[str, Any], Any]:
    """`asked(what, request)`: the answer of judges.py in the environment."""
    python = needed(ENVIRONMENT / "bin" / "python")

    def ask(what: str, request: Any) -> Any:
        done = subprocess.run(
            [str(python), str(Path(__file__).with_name("judges.py")), what],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ask


@pytest.fixture(scope="session")
def complaints(
    asked: Callable[[str, Any], Any],
    node: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[list[Any]], list[str]]:
    """`complaints(manifests)`: what Kubernetes' and the operator's schemas say against them."""

    def judge_all(manifests: list[Any]) -> list[str]:
        custom = [
            one for one in manifests if one["apiVersion"].startswith("monitoring.coreos.com/")
        ]
        known = [one for one in manifests if one not in custom]
        file = tmp_path_factory.mktemp("crds") / "manifests.json"
        file.write_text(json.dumps(custom))
        found: list[str] = json.loads(node("crds.mjs", file))
        return asked("validate", known) + found

    return judge_all


@pytest.fixture(scope="session")
def node_modules(program: Callable[[str], str]) -> Path:
    """Where Node finds the packages of the environment."""
    program("node")
    found = ENVIRONMENT / "node" / "node_modules"
    needed(found / "@grafana" / "ui")
    return found


@pytest.fixture(scope="session")
def scripts(node_modules: Path) -> Path:
    """The scripts of `node/`, beside the packages: Node looks for those from where a script is."""
    home = node_modules.parent
    for source in Path(__file__).with_name("node").iterdir():
        shutil.copy(source, home / source.name)
    return home


@pytest.fixture(scope="session")
def node(scripts: Path, judge: Callable[..., str]) -> Callable[..., str]:
    """`node(script, *arguments)`: what a script of `node/` printed."""

    def run(script: str, *arguments: str | Path) -> str:
        return judge("node", scripts / script, *arguments, cwd=str(scripts))

    return run


@pytest.fixture(scope="session")
def artefacts() -> Path:
    """Where pictures are kept."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    return ARTEFACTS


@pytest.fixture(scope="session")
def played(
    program: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Played]:
    """The play, to its end; Prometheus still answers."""
    for name in ("prometheus", "prometheus-alertmanager"):
        program(name)
    with play(tmp_path_factory.mktemp("play"), str(needed(NEWEST_PYTHON))) as what:
        yield what
