"""What the documents show: blocks, commands in sentences, and those in the heads of manifests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

#: Every document of ours, and every file that is set up by hand and may say how in its comments.
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("dashboards/**/*.md")]
)
MANIFESTS = sorted(
    path
    for pattern in ("dashboards/**/*.y*ml", "docker-compose.yaml", "Dockerfile", "Makefile")
    for path in ROOT.glob(pattern)
)

#: The languages of blocks, and what is done with each.
LANGUAGES = {
    "sh": "run, a command at a time",
    "python": "run",
    "text": "compared with what the sh block before it prints",
    "promql": "its metrics must be ours",
    "dockerfile": "its commands are checked",
    "yaml": "read",
    "cpp": "a signature that is proposed: nothing compiles it",
}

_FENCE = re.compile(r"^```(\S*)\n(.*?)^```$|^(#+) ([^\n]*)$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_COMMENT = re.compile(r"^\s*#( .*)?$")


class Block(NamedTuple):
    """A fenced block: where it stands, under which heading, its language and its text."""

    name: str
    line: int
    section: str
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.name}:{self.line}"


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks_of(path: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    text, section, found = path.read_text(), "", []
    for match in _FENCE.finditer(text):
        if match[4] is not None:
            section = match[4]
        else:
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(relative(path), line, section, match[1], match[2]))
    return found


def prose_of(path: Path) -> str:
    """A document without its fenced blocks."""
    return _FENCE.sub(lambda match: match[0] if match[4] is not None else "", path.read_text())


def indented_of(path: Path) -> list[str]:
    """The lines of its indented blocks."""
    found = re.findall(r"(?<=\n\n)(?: {4}.*\n)+", prose_of(path))
    return [line.strip() for part in found for line in part.split("\n")]


def spans_of(path: Path) -> list[str]:
    """The code between backticks in its sentences, or in the comments of a manifest."""
    text = prose_of(path) if path.suffix == ".md" else "\n".join(_comments(path))
    return _SPAN.findall(text)


def head_of(path: Path) -> Block:
    """The commands in the head of a manifest: comment lines that are indented as code is."""
    head: list[str] = []
    for line in path.read_text().split("\n"):
        if line and not _COMMENT.match(line):
            break
        head.append(line)
    commands = [line[4:] for line in head if re.match(r"#   +\S", line)]
    return Block(relative(path), 1, "head", "sh", "".join(f"{line}\n" for line in commands))


def notes_of_chart() -> Block:
    """The commands that Helm prints once it has installed the chart, for a release `vllm`."""
    path = ROOT / "dashboards" / "kubernetes" / "chart" / "templates" / "NOTES.txt"
    text = path.read_text()
    for pattern, value in ((r"\.Values\.port", "19456"), (r"[^}]*", "vllm")):
        text = re.sub(rf"{{{{ {pattern} }}}}", value, text)
    commands = re.findall(r"^  (.+)$", text, re.MULTILINE)
    return Block("NOTES.txt of the chart", 1, "", "sh", "\n".join(commands))


def _comments(path: Path) -> list[str]:
    return [line for line in path.read_text().split("\n") if _COMMENT.match(line)]
