"""Where an installed engine's source is, without importing the engine."""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ws_guard.engines.releases import ENGINES, installed_version, numbers


def package_of(engine: str) -> Path:
    """The package directory of an installed engine of a known release, or a skip with its reason.

    `WS_GUARD_REQUIRE_REAL_ENGINES=1` makes the skip a failure.
    """
    spec = importlib.util.find_spec(engine)
    version = installed_version(ENGINES[engine])
    known = {numbers(release.version) for release in ENGINES[engine].releases}
    if spec is None or not spec.submodule_search_locations or version is None:
        _absent(f"{engine} is not installed here")
    elif numbers(version) not in known:
        _absent(f"{engine} {version} is none of the known releases")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def _absent(reason: str) -> None:
    if os.environ.get("WS_GUARD_REQUIRE_REAL_ENGINES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def function_of(path: Path, name: str, **known: Any) -> Callable[..., Any]:
    """A pure function of a source file, compiled alone with the file's plain constants."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    wanted = [
        node
        for node in tree.body
        if (isinstance(node, ast.FunctionDef) and node.name == name) or _is_constant(node)
    ]
    scope: dict[str, Any] = dict(known)
    exec(compile(ast.Module(wanted, []), str(path), "exec"), scope)  # noqa: S102 - the engine's own
    function: Callable[..., Any] = scope[name]
    return function


def _is_constant(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign):
        return False
    return not any(isinstance(each, (ast.Call, ast.Name)) for each in ast.walk(node.value))
