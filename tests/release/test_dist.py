"""What a release holds, and that whoever has its sources can make it again."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from release.dist import BOTH, build, digests
from ws_guard.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from released import Dist

pytestmark = pytest.mark.release

HOT = "ws_guard/probe/_hot.abi3.so"


def git(*command: str) -> list[str]:
    done = subprocess.run(["git", *command], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def metadata(wheel: Path, name: str) -> str:
    return contents(wheel)[f"ws_guard-{__version__}.dist-info/{name}"].decode()


def test_a_wheel_is_the_package_and_nothing_else(dist: Dist) -> None:
    package = set(git("ls-tree", "-r", "--name-only", "HEAD", "ws_guard"))
    held = {name for name in contents(dist.pure) if ".dist-info/" not in name}
    assert held == package


def test_the_compiled_wheel_holds_one_file_more(dist: Dist) -> None:
    pure, compiled = contents(dist.pure), contents(dist.compiled)
    assert set(compiled) - set(pure) == {HOT}
    differing = {name.rpartition("/")[2] for name in pure if pure[name] != compiled[name]}
    assert differing == {"WHEEL", "RECORD"}
    assert "Root-Is-Purelib: true" in metadata(dist.pure, "WHEEL")
    assert "Root-Is-Purelib: false" in metadata(dist.compiled, "WHEEL")


def test_an_engine_gets_no_dependency(dist: Dist) -> None:
    lines = metadata(dist.pure, "METADATA").splitlines()
    needs = [line for line in lines if line.startswith("Requires-Dist:")]
    assert needs
    assert [need for need in needs if "extra ==" not in need] == []
    assert f"Version: {__version__}" in lines
    assert "[vllm.general_plugins]\nws_guard = " in metadata(dist.pure, "entry_points.txt")


def test_the_version_is_written_in_one_place(tmp_path: Path) -> None:
    """A clone with another version there makes a wheel of that version, in all that it says."""
    clone = tmp_path / "clone"
    git("clone", "--quiet", "--no-local", ".", str(clone))
    place = clone / "ws_guard" / "version.py"
    place.write_text(place.read_text().replace(f'"{__version__}"', '"7.8.9"'))
    build_wheel = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path]
    subprocess.run([*build_wheel, clone], capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("ws_guard-7.8.9-")
    own = {name: text for name, text in contents(wheel).items() if ".dist-info/" in name}
    assert all(name.startswith("ws_guard-7.8.9.dist-info/") for name in own)
    assert re.findall(
        b"^Version: (.*)$", own["ws_guard-7.8.9.dist-info/METADATA"], re.MULTILINE
    ) == [b"7.8.9"]


def test_sources_are_whole(dist: Dist) -> None:
    """All that is in the repository, but for what concerns the repository itself."""
    with tarfile.open(dist.sources) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert set(git("ls-tree", "-r", "--name-only", "HEAD")) - held == {".dockerignore"}
    assert held - set(git("ls-tree", "-r", "--name-only", "HEAD")) == {"PKG-INFO"}


def test_sources_without_a_compiler_make_the_published_wheel(
    dist: Dist, wheel_of: Callable[..., Path], tmp_path: Path
) -> None:
    """Byte for byte, by pip, from the archive, under another path."""
    (tmp_path / "bin").mkdir()
    assert shutil.which("cc", path=tmp_path / "bin") is None
    made = wheel_of(
        dist.sources,
        PATH=str(tmp_path / "bin"),
        SOURCE_DATE_EPOCH=git("log", "-1", "--format=%ct")[0],
    )
    assert made.name == dist.pure.name
    assert made.read_bytes() == dist.pure.read_bytes()


def test_sources_with_a_compiler_make_the_hot_path(
    dist: Dist, wheel_of: Callable[..., Path]
) -> None:
    made = wheel_of(dist.sources)
    assert re.fullmatch(rf"ws_guard-{re.escape(__version__)}-cp310-abi3-linux_\w+\.whl", made.name)
    assert contents(made)[HOT] == contents(dist.compiled)[HOT]


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("1", "WS_GUARD_BUILD_EXTENSION=1, but there is no C compiler (no-such-cc)"),
        ("yes", "is 0 or 1"),
    ],
)
def test_a_wheel_without_the_hot_path_can_be_refused(
    setting: str, what: str, wheel_of: Callable[..., Path], dist: Dist
) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        wheel_of(dist.sources, WS_GUARD_BUILD_EXTENSION=setting, CC="no-such-cc")
    assert what in (refused.value.stdout + refused.value.stderr).decode()


def test_a_build_that_heeds_its_surroundings_is_noticed(tmp_path: Path, dist: Dist) -> None:
    """A compiler that writes down where it runs makes two wheels of one commit."""
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nexec cc "$@" -DWHERE="\\"$PWD\\"" -g\n')
    compiler.chmod(0o755)
    told = [
        digests(
            build(tmp_path, each._replace(environment={**each.environment, "CC": str(compiler)}))
        )
        for each in BOTH
    ]
    differing = {name for name, _ in told[0].items() ^ told[1].items()}
    assert differing == {dist.compiled.name}
    assert digests(dist.pure.parent).items() - told[0].items() == {
        (dist.compiled.name, hashlib.sha256(dist.compiled.read_bytes()).hexdigest())
    }
