"""Where a model's config is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ws_guard.engines.hub import find_config, hub_cache, read_config
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
