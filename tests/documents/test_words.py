"""Names in sentences: commands between backticks, settings, files, routes. All of them exist."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import httpx
import installing
import ours
import programs
import pytest
import typer
from blocks import DOCUMENTS, MANIFESTS, ROOT, relative, spans_of

from ws_guard.commands import app
from ws_guard.settings import DECLARED, require_settings

if TYPE_CHECKING:
    from pathlib import Path

    from stage import Stage

#: What changed once is not what is there today.
HISTORY = ROOT / "CHANGELOG.md"
TEXTS = [path for path in [*DOCUMENTS, *MANIFESTS] if path != HISTORY]
#: Settings that are told of because they must not be.
NO_SETTINGS = {"WS_GUARD_PORT"}
ROOMS = "benchmarks|dashboards|docs|tests|ws_guard"


def by_name(path: Path) -> str:
    return relative(path)


@pytest.mark.parametrize("path", TEXTS, ids=by_name)
def test_commands_in_sentences(path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their programs and flags exist. `...` and words like MODEL stand for something else."""
    for name, value in stage.environment().items():
        if name.startswith(("DOCUMENTED_", "NS", "POD")):
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(stage.directory)
    for span in spans_of(path):
        for arguments in parts_of(span):
            check(arguments, span)


def parts_of(span: str) -> list[list[str]]:
    """The commands of a pipe, without settings before them and `...` within."""
    lexer = shlex.shlex(span, posix=True, punctuation_chars="|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        # A quotation mark that is text.
        return []
    found: list[list[str]] = [[]]
    for word in words:
        if word == "|":
            found.append([])
        elif word != "..." and (found[-1] or not re.fullmatch(r"[A-Z_]+=\S*", word)):
            found[-1].append(word)
    return [each for each in found if each]


def check(arguments: list[str], span: str) -> None:
    """One command. The engines' and the cluster's are looked at where a block has them."""
    program, rest = arguments[0], arguments[1:]
    if program == "ws-guard":
        parse(rest, span)
    elif program.startswith("ws-guard["):
        assert installing.pip(["install", program]) == 0, span
    elif program in ("make", "pip") and rest:
        assert programs.PROGRAMS[program](rest) == 0, span
    elif program in ("python", "python3") and rest:
        name = rest[1] if rest[0] == "-m" else rest[0]
        if ours.is_long(name):
            assert ours.look_at(name, rest[2:] if rest[0] == "-m" else rest[1:]) == 0, span
        elif rest[0] == "-m" and name not in ours.OF_ENGINES:
            assert ours.find_spec(name), span


def parse(arguments: list[str], span: str) -> None:
    """A command line of ours, by its own parser: subcommand, options, kinds of their values."""
    group = typer.main.get_command(app)
    words = [each for each in arguments if not each.startswith("[")]
    if not words:
        return
    if words[0].startswith("-"):
        command = group
    else:
        command = group.commands.get(words.pop(0))
        assert command is not None, f"no such command: {span}"
    own = words[: words.index("--")] if "--" in words else words
    parser = command.make_parser(typer.Context(command, info_name="ws-guard"))
    # A flag that is only named, `--board`, gets a value.
    flags_alone = [*own, "1"] if own and own[-1].startswith("--") else own
    parser.parse_args(list(flags_alone))


@pytest.mark.parametrize("path", [*DOCUMENTS, *MANIFESTS], ids=by_name)
def test_settings_are_known(path: Path) -> None:
    named = set(re.findall(r"\bWS_GUARD_[A-Z_]*[A-Z]\b", path.read_text()))
    assert named <= set(DECLARED) | NO_SETTINGS | settings_of_tests(), path.name


@pytest.mark.parametrize("path", [*DOCUMENTS, *MANIFESTS], ids=by_name)
def test_values_of_settings_are_allowed(path: Path) -> None:
    given = re.findall(r"(?<!-)\b(WS_GUARD_\w+)=([^\s`$|]+)", path.read_text())
    for name, value in given:
        if name in DECLARED and "..." not in value:
            require_settings({name: value.rstrip(".,;:)")})


def settings_of_tests() -> set[str]:
    """Those that builds and tests read."""
    files = [ROOT / "hatch_build.py", ROOT / "Makefile", *ROOT.glob("tests/**/*.py")]
    quoted = r"\"(WS_GUARD_[A-Z_]+)\"|\b(WS_GUARD_[A-Z_]+)=1"
    found = [pair for file in files for pair in re.findall(quoted, file.read_text())]
    return {name for pair in found for name in pair if name and name != "WS_GUARD_REQUIRE"}


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path != HISTORY], ids=by_name)
def test_variables_of_engines_are_known(path: Path) -> None:
    sources = "".join(file.read_text() for file in ROOT.glob("ws_guard/**/*.py"))
    for name in set(re.findall(r"\b(?:VLLM|SGLANG)_[A-Z_]*[A-Z]\b", path.read_text())):
        assert name in sources or name in {"VLLM_PLUGINS", "SGLANG_PLUGINS"}, name


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path != HISTORY], ids=by_name)
def test_files_that_are_named_are_there(path: Path) -> None:
    named = set(re.findall(rf"(?<![\w/.-])(?:{ROOMS})/[\w/.-]*\w", path.read_text()))
    missing = [name for name in sorted(named) if not (ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize("path", [path for path in TEXTS if path.suffix == ".md"], ids=by_name)
def test_routes_answer(path: Path, stage: Stage) -> None:
    before, after = r"(?:(?<=127\.0\.0\.1:19456)|(?<![\w.}/]))", r"(?![\w/*])"
    route_of_ours = r"(/(?:metrics|health|readyz|livez|api/v1/\w+)(?:\?[\w=&]*)?)"
    for route in set(re.findall(before + route_of_ours + after, path.read_text())):
        # 503: not ready, which is an answer; 422 where the sentence leaves out which rank.
        assert httpx.get(stage.exporter + route).status_code in (200, 422, 503), route
