"""Takes a launch command apart: environment, engine, and the words behind it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from ws_guard.sizing import InputError

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
#: `docker run --env=VAR=x`, `-eVAR=x`: the flag before the assignment.
_CONTAINER_ENV = re.compile(r"^(?:--env=|-e=?)")
#: Programs with their subcommand, and modules behind `python -m`: what starts which engine.
_PROGRAMS = {("vllm", "serve"): "vllm", ("sglang", "serve"): "sglang"}
_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "sglang.launch_server": "sglang",
}
#: Modules that take a subcommand like their program.
_MODULE_PROGRAMS = {
    "vllm.entrypoints.cli.main": "vllm",
    "vllm": "vllm",
    "sglang.cli.main": "sglang",
    "sglang": "sglang",
}
#: Files that start an engine; what stands in them is not read.
_SCRIPTS = (".sh", ".bash", ".py")
#: What starts an image whose entry point may be the engine.
_CONTAINER_TOOLS = ("docker", "podman", "nerdctl", "kubectl")
#: `docker run --entrypoint vllm IMAGE serve ...`: the program before the image, the rest behind it.
_ENTRY_POINT = "--entrypoint"
#: The engines' own images, from whatever registry: what their tags begin with is the release.
_IMAGE = re.compile(r"(?:[^@\s]+/)?(vllm/vllm-openai|lmsysorg/sglang):([^@\s]+)(?:@\S+)?")
_IMAGE_ENGINES = {"vllm/vllm-openai": "vllm", "lmsysorg/sglang": "sglang"}
_IMAGE_STARTS = {"vllm/vllm-openai": ("vllm", "serve")}
_RELEASE_OF_TAG = re.compile(r"v?(\d+\.\d+\.\d+(?:(?:rc|\.post|\.dev)\d+)?)(?:-.*)?")


class Command(NamedTuple):
    """A launch command: `environ` it sets itself, the engine, the words behind the engine.

    `positional_model` where the first word may be the model; `image` is the engine's own image that
    it starts, with its tag.
    """

    engine: str
    environ: dict[str, str]
    words: list[str]
    positional_model: bool
    image: str | None = None

    @property
    def image_version(self) -> str | None:
        """The release that the image's tag tells; None where it tells none, as `latest`."""
        tag = (self.image or "").rpartition(":")[2]
        match = _RELEASE_OF_TAG.fullmatch(tag)
        return match[1] if match else None


def parse_command(words: Sequence[str]) -> Command:
    """Find the engine in a command; what stands before it may set variables or wrap it.

    `VAR=1 env X=2 nice vllm serve ...` and a command given as one quoted word are understood.
    Raises `InputError` where no engine is started.
    """
    words = _entry_point_moved(_unquoted(words))
    environ: dict[str, str] = {}
    images: dict[str, str] = {}
    for index, word in enumerate(words):
        start = _engine_at(words, index)
        if start is not None:
            engine, behind, positional = start
            rest = list(words[behind:])
            return Command(engine, environ, rest, positional, images.get(engine))
        image = _IMAGE.fullmatch(word)
        if image:
            images[_IMAGE_ENGINES[image[1]]] = f"{image[1]}:{image[2]}"
        assignment = _ASSIGNMENT.fullmatch(_CONTAINER_ENV.sub("", word))
        if assignment:
            environ[assignment[1]] = assignment[2]
    raise InputError(
        "no engine in the launch command: it needs 'vllm serve', 'sglang serve', or python -m "
        f"with {' or '.join(_MODULES)}{_rewritten(words)}"
    )


def _entry_point_moved(words: Sequence[str]) -> Sequence[str]:
    """The program of an entry point put where it starts: before its arguments behind the image.

    vLLM's own image has `vllm serve`.
    """
    for index, word in enumerate(words):
        image = _IMAGE.fullmatch(word)
        following = "".join(words[index + 1 : index + 2])
        if image and image[1] in _IMAGE_STARTS and following[:1] == "-" and following != "-m":
            return [*words[: index + 1], *_IMAGE_STARTS[image[1]], *words[index + 1 :]]
        flag, equals, program = word.partition("=")
        if flag != _ENTRY_POINT:
            continue
        behind = index + (1 if equals else 2)
        program = program or following
        for at in range(behind, len(words)):
            if (PurePosixPath(program).name, words[at]) in _PROGRAMS:
                return [*words[:index], *words[behind:at], program, *words[at:]]
    return words


def _rewritten(words: Sequence[str]) -> str:
    """What to write instead of a command that hides the engine's own; "" where nothing does."""
    if words and words[0][:1] in ("-", "["):
        return (
            "; a container's arguments stand behind the engine, as plain words: "
            "vllm serve MODEL, and the arguments"
        )
    for word in words:
        if PurePosixPath(word).suffix in _SCRIPTS:
            return f"; {word} is not read: write the command that it starts, vllm serve MODEL ..."
    for quoted in (word.split() for word in words if " " in word):
        for index, word in enumerate(quoted):
            if _engine_at(quoted, index):
                shown = f"{'python ' if word == '-m' else ''}{word} {quoted[index + 1]}"
                return f"; write what stands in the quotes without them: {shown} ..."
    if any(PurePosixPath(word).name in _CONTAINER_TOOLS for word in words):
        return "; write what the container starts: vllm serve MODEL, and the flags behind the image"
    return ""


def _unquoted(words: Sequence[str]) -> Sequence[str]:
    if len(words) != 1 or " " not in words[0]:
        return words
    try:
        return shlex.split(words[0])
    except ValueError as error:
        raise InputError(f"the launch command cannot be read: {error}") from None


def _engine_at(words: Sequence[str], index: int) -> tuple[str, int, bool] | None:
    """(engine, index of the words behind it, whether a model may follow) if it starts here."""
    following = words[index + 1] if index + 1 < len(words) else ""
    program = PurePosixPath(words[index]).name
    if (program, following) in _PROGRAMS:
        return _PROGRAMS[program, following], index + 2, True
    if words[index] != "-m":
        return None
    if following in _MODULES:
        return _MODULES[following], index + 2, False
    third = words[index + 2] if index + 2 < len(words) else ""
    program = _MODULE_PROGRAMS.get(following, "")
    if (program, third) in _PROGRAMS:
        return program, index + 3, True
    return None
