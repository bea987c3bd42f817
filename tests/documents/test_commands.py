"""Every command that the documents show runs as it is written, and prints what they say.

What cannot run as written is in `programs.REASONS` and `ours.LONG`, with what is checked instead.
A program that nobody thought of fails: nothing is passed over.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import typer
from blocks import (
    DOCUMENTS,
    LANGUAGES,
    MANIFESTS,
    Block,
    blocks_of,
    head_of,
    indented_of,
    notes_of_chart,
)
from programs import PROGRAMS

from ws_guard.commands import app

if TYPE_CHECKING:
    from pathlib import Path

    from stage import Stage

    from ws_guard.exporter.metrics import Metric

BLOCKS = [block for path in DOCUMENTS for block in blocks_of(path)]
#: Commands whose 1 is an answer, or the code of what they ran.
MAY_SAY_NO = re.compile(r"\bws-guard (plan|status|run)\b")
#: What differs from run to run: a moment, and the directory of a board.
VARIES = (
    (
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}",
        r"\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d\\.\\d{3}",
    ),
    (r"/dev/shm/ws_guard-run-\w+", r"/dev/shm/ws_guard-run-\\w+"),
)


def examples_of_help() -> list[Block]:
    """The commands that `--help` shows, by command."""
    group = typer.main.get_command(app)
    found = []
    for name, command in group.commands.items():
        context = typer.Context(command, info_name=f"ws-guard {name}", terminal_width=200)
        lines = re.findall(r"^ +(ws-guard .+)$", command.get_help(context), re.MULTILINE)
        found.append(Block(f"ws-guard {name} --help", 1, "help", "sh", "\n".join(lines)))
    return found


def shown(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def pairs() -> list[tuple[Block, Block]]:
    """Each block of text, with the block of commands before it in its section."""
    found = []
    for path in DOCUMENTS:
        before: Block | None = None
        for block in blocks_of(path):
            if block.language == "text":
                assert before is not None, f"{block.where}: no command stands before this output"
                assert before.section == block.section, (
                    f"{block.where}: not in its command's section"
                )
                found.append((before, block))
            before = block if block.language in ("sh", "python") else before
    return found


OUTPUTS = dict(pairs())
RUN = [
    block
    for block in [
        *(*shown("sh"), *shown("python"), notes_of_chart()),
        *(*map(head_of, MANIFESTS), *examples_of_help()),
    ]
    if block.text.strip()
]


def name_of(block: Block) -> str:
    return block.where


@pytest.mark.parametrize("block", RUN, ids=name_of)
def test_it_runs_and_prints_what_is_shown(block: Block, stage: Stage) -> None:
    printed = run_python(block, stage) if block.language == "python" else run(block, stage)
    if block in OUTPUTS:
        printed = "\n".join(line.rstrip() for line in printed.split("\n"))
        assert re.fullmatch(pattern_of(OUTPUTS[block].text), printed), printed


def run(block: Block, stage: Stage) -> str:
    """What a block's commands print, each of which ends well."""
    printed = ""
    for done in stage.run(block.text, stage.beside(block.name)):
        allowed = (0, 1) if MAY_SAY_NO.search(done.command) else (0,)
        assert done.code in allowed, f"{done.command}\n{done.output}"
        printed += done.output
    return printed


def pattern_of(text: str) -> str:
    """A block of text as a pattern: `...` on a line is any lines, within one anything.

    A long line may be broken at a space.
    """
    parts = []
    for line in text.rstrip("\n").split("\n"):
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            part = re.escape(line).replace(r"\.\.\.", ".*").replace(r"\ ", " ")
            for moment, any_moment in VARIES:
                part = re.sub(moment.replace(r"\.", r"\\\."), any_moment, part.replace(r"\-", "-"))
            parts.append(f"{part}[ \\n]")
    return "".join(parts) + r"\n*"


def run_python(block: Block, stage: Stage) -> str:
    """A block on a board of its own, without a GPU: "cuda" is "cpu" here. Nothing on stderr."""
    environ = stage.environment() | {"WS_GUARD_BOARD": f"{stage.board}-{block.line}"}
    done = subprocess.run(
        [sys.executable, "-c", block.text.replace('"cuda"', '"cpu"')],
        env=environ, cwd=stage.directory, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def metrics() -> tuple[Metric, ...]:
    from ws_guard.exporter.metrics import METRICS

    return tuple(METRICS)


@pytest.mark.parametrize("block", shown("promql"), ids=name_of)
def test_expressions_ask_for_metrics_of_ours(block: Block, metrics: tuple[Metric, ...]) -> None:
    asked = set(re.findall(r"\bws_guard_\w+", block.text))
    known = {
        f"ws_guard_{metric.name}{end}" for metric in metrics for end in ("", "_bucket", "_count")
    }
    assert asked
    assert asked <= known


@pytest.mark.parametrize("block", shown("dockerfile"), ids=name_of)
def test_lines_of_a_dockerfile(block: Block, stage: Stage) -> None:
    lines = [line.partition(" ") for line in block.text.strip().split("\n")]
    assert {word for word, _, _ in lines} <= {"FROM", "RUN", "COPY", "ENV", "USER"}
    for _, _, command in (each for each in lines if each[0] == "RUN"):
        (done,) = stage.run(command)
        assert done.code == 0, done.output


def test_every_language_is_known() -> None:
    assert {block.language for block in BLOCKS} <= set(LANGUAGES)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_command_hides_in_an_indented_block(path: Path) -> None:
    first_words = {re.split(r"[\s(]+", line.lstrip("$("))[0] for line in indented_of(path)}
    assert first_words & (set(PROGRAMS) | {"cat", "echo"}) == set(), "put it into a block of sh"
