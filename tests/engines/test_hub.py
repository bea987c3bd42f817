"""Where a model's config is looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ws_guard.engines.hub import find_config, hub_cache, read_cached_config, read_config
from ws_guard.sizing import InputError


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, str(Path.home() / ".cache/huggingface/hub")),
    ],
)
def test_cache_directory(environ: dict[str, str], path: str) -> None:
    assert str(hub_cache(environ)) == path


def test_by_id_directory_file_and_revision(hub: Path) -> None:
    environ = {"HF_HUB_CACHE": str(hub)}
    config = find_config("zai/glm", environ)
    assert config.parent.name == "0123abcd"
    for name in (str(config), str(config.parent)):
        assert find_config(name, {}) == config
    assert find_config("zai/glm", environ, revision="0123abcd") == config
    assert find_config("zai/glm", {"HF_HUB_CACHE": "/nowhere"}, cache=str(hub)) == config


def test_what_is_not_found(tmp_path: Path, hub: Path) -> None:
    environ = {"HF_HUB_CACHE": str(hub)}
    with pytest.raises(InputError, match="neither a path nor in the hub cache"):
        find_config("no/such", environ)
    with pytest.raises(InputError, match="neither a path nor in the hub cache"):
        find_config("zai/glm", environ, revision="v2")
    with pytest.raises(InputError, match=r"holds no config\.json"):
        find_config(str(tmp_path), environ)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "cannot be read as a model's config"), ("[]", "no JSON object"), ("\xff", "cannot be")],
)
def test_broken_configs(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=words):
        read_config(str(path), {})


def _link(hub: Path, name: str, target: Path) -> None:
    snapshot = hub / f"models--{name.replace('/', '--')}" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to(target)


def test_the_hub_cache_has_symlinks(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text('{"num_attention_heads": 8}')
    _link(tmp_path, "m/x", tmp_path / "blob")
    environ = {"HF_HUB_CACHE": str(tmp_path)}
    assert read_cached_config("m/x", environ) == {"num_attention_heads": 8}
    assert read_config("m/x", environ) == {"num_attention_heads": 8}


def test_an_id_that_is_only_in_the_cache_is_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "x").write_text('{"num_attention_heads": 8}')
    monkeypatch.chdir(tmp_path)
    assert read_config("m/x", {"HF_HUB_CACHE": "/nowhere"}) == {"num_attention_heads": 8}
    with pytest.raises(InputError, match="is not in the hub cache /nowhere"):
        read_cached_config("m/x", {"HF_HUB_CACHE": "/nowhere"})


@pytest.mark.parametrize("kind", ["pipe", "device", "kernel", "large", "empty", "ref"])
def test_what_is_no_small_file_is_not_read(kind: str, tmp_path: Path) -> None:
    """None of these may be waited for, nor filled into the memory."""
    target = tmp_path / "target"
    target.touch()
    if kind in ("pipe", "ref"):
        target.unlink()
        os.mkfifo(target)
    elif kind == "large":
        os.truncate(target, 30 << 30)
    elif kind in ("device", "kernel"):
        target = Path({"device": "/dev/zero", "kernel": "/proc/self/stat"}[kind])
    _link(tmp_path, "m/x", target)
    if kind == "ref":
        refs = tmp_path / "models--m--x" / "refs"
        refs.mkdir()
        (refs / "main").symlink_to(target)
    with pytest.raises(InputError):
        read_config("m/x", {"HF_HUB_CACHE": str(tmp_path)})
    with pytest.raises(InputError):
        read_config(str(tmp_path / "models--m--x" / "snapshots" / "main"), {})
