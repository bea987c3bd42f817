"""The flags of a launch command, and what to say of those that do not bear on sizes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from ws_guard.sizing import InputError

from . import sglang_command, vllm_command
from .command import Command
from .config_file import config_words
from .flags import Flag, Read, read_flags
from .known_flags import known_flags
from .known_values import notes_on_values

#: Those that bear on sizes, by engine.
FLAGS: dict[str, tuple[Flag, ...]] = {
    "vllm": vllm_command.FLAGS,
    "sglang": sglang_command.FLAGS,
}
#: Values of `plan`'s own flags that win over the command's.
OWN_FIELDS = ("tp", "dcp", "pcp", "dp", "max_num_batched_tokens", "max_num_seqs")


def read_words(command: Command) -> Read:
    """The command's flags, those of its `--config` before them; a positional model wins."""
    flags, known = FLAGS[command.engine], known_flags(command.engine)
    read = read_flags(command.words, flags, known)
    path = read.values.pop("config", None)
    if path is not None:
        below = read_flags(config_words(path), flags, known)
        read = read._replace(
            values={**below.values, **read.values},
            ignored=[*below.ignored, *read.ignored],
            unknown=[*below.unknown, *read.unknown],
        )
    if command.positional_model and read.positional:
        read.values["model"] = read.positional[0]
    elif command.positional_model and read.behind is not None:
        # `vllm serve --host 0.0.0.0 MODEL -tp 8`: the model stands behind an unknown flag's value.
        read.values.setdefault("model", read.behind)
    return read


def notes_on_flags(command: Command, read: Read, *, newer: bool) -> Iterator[str]:
    """Says which flags were not read. `InputError` for one that looks like a misspelt one.

    A plan without that size would be wrong. Of a release newer than any looked at it is not known
    which flags it has: a note, then.
    """
    engine = command.engine
    if read.ignored:
        flags = ", ".join(dict.fromkeys(read.ignored))
        yield f"ignored, without a bearing on the workspace: {flags}"
    mine, lent = _spellings(engine), _lent(engine)
    for flag in dict.fromkeys(read.unknown):
        meant = known_flags(engine).meant(flag, mine, lent)
        if meant is not None and not newer:
            raise InputError(
                f"{flag} of the launch command is no flag of {engine}: did you mean {meant}?"
            )
        hint = f"; did you mean {meant}?" if meant else ""
        yield f"ignored, no flag of {engine} that is known here: {flag}{hint}"
    yield from _notes_on_words(engine, command, read.positional, newer=newer)
    yield from notes_on_values(engine, read.values, _flag_of_fields(engine), newer=newer)


def _notes_on_words(
    engine: str, command: Command, words: list[str], *, newer: bool
) -> Iterator[str]:
    """Says which words belong to no flag. `InputError` for a size whose dashes are lost."""
    sizes = {**_lent(engine), **{text: text for text in _spellings(engine)}}
    bare = {text.lstrip("-"): flag for text, flag in sizes.items()}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, equals, glued = word.partition("=")
        value = glued if equals else following
        flag = bare.get(name.lower().replace("_", "-"))
        if flag and value[:1].isdigit() and not newer:
            raise InputError(
                f"{word if equals else f'{word} {value}'} of the launch command has no dashes: "
                f"did you mean {flag} {value}?"
            )
    if stray := words[int(command.positional_model) :]:
        yield f"ignored, words that belong to no flag: {' '.join(stray)}"


def _flag_of_fields(engine: str) -> dict[str, str]:
    """Each field's flag as it is written out."""
    return {flag.field: flag.spellings[0] for flag in reversed(FLAGS[engine])}


def _spellings(engine: str) -> dict[str, str]:
    """The spellings of an engine's flags that bear on sizes, with the field of each."""
    return {text: flag.field for flag in FLAGS[engine] for text in flag.spellings}


def _lent(engine: str) -> dict[str, str]:
    """What the other engines call such a flag, and `plan` itself: with this one's own spelling."""
    mine = _flag_of_fields(engine)
    theirs = {f"--{name.replace('_', '-')}": name for name in OWN_FIELDS}
    for other in FLAGS:
        theirs = {**theirs, **_spellings(other)}
    return {text: mine[field] for text, field in theirs.items() if field in mine}
