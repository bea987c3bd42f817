"""`pip`, `uv`, `pipx` and `conda`: what they would install is looked at, and not installed."""

from __future__ import annotations

import re
from pathlib import Path

from answers import refuse, unknown

ROOT = Path(__file__).parents[2]
#: Options of `install` that the documents use, and whether a value follows.
OPTIONS = {
    "--no-cache-dir": False,
    "--no-index": False,
    "--no-deps": False,
    "--quiet": False,
    "--system": False,
    "--upgrade": False,
    "-e": False,
    "--target": True,
    "--with": True,
    "-n": True,
}
#: What else the documents have installed.
OTHERS = {"vllm", "sglang", "flashinfer-python", "build", "twine"}


def pip(arguments: list[str]) -> int:
    """`install` and `uninstall`, with requirements whose extras we have."""
    if arguments[:1] not in (["install"], ["uninstall"]):
        return unknown(f"pip {arguments[:1]}")
    rest = arguments[1:]
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            if word not in OPTIONS:
                return unknown(word)
            if not OPTIONS[word]:
                continue
            word = rest.pop(0)
        if problem := _problem(word):
            return refuse(problem)
    return 0


def uv(arguments: list[str]) -> int:
    """`uv pip install` and `uv tool install`."""
    if arguments[:1] not in (["pip"], ["tool"]):
        return unknown(f"uv {arguments}")
    return pip(arguments[1:])


def pipx(arguments: list[str]) -> int:
    """`pipx install`."""
    return pip(arguments)


def conda(arguments: list[str]) -> int:
    """`conda run -n ENVIRONMENT python -m pip ...`."""
    if arguments[:2] != ["run", "-n"] or arguments[3:6] != ["python", "-m", "pip"]:
        return unknown(f"conda {arguments}")
    return pip(arguments[6:])


def _problem(requirement: str) -> str:
    """What is wrong with a requirement; nothing, where it can be installed."""
    found = re.fullmatch(r"([\w.-]+|\.|\S*\*?\.whl)(?:\[([\w,]+)\])?(?:==[\w.]+)?", requirement)
    if found is None:
        return f"{requirement!r} is no requirement"
    name, extras = found[1], set((found[2] or "").split(",")) - {""}
    if name not in {"ws-guard", ".", *OTHERS} and not re.search(r"(^|/)ws_guard-\S*\.whl$", name):
        return f"{name!r} is no package that the documents should name"
    declared = set(re.findall(r"^(\w+) = \[", _optional_dependencies(), re.MULTILINE))
    return f"there is no extra {extras - declared}" if extras - declared else ""


def _optional_dependencies() -> str:
    text = (ROOT / "pyproject.toml").read_text()
    return text.partition("[project.optional-dependencies]")[2].partition("[project.scripts]")[0]
