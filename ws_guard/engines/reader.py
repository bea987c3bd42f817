"""From a launch command, or from `plan`'s own flags, to a `Launch` and what to say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ws_guard.sizing import DEFAULT_SM_COUNT, InputError
from ws_guard.sizing.errors import whole

from . import sglang_command, vllm_command
from .command import parse_command
from .config_file import config_words
from .flags import Read, read_flags
from .hub import read_config
from .known_flags import known_flags
from .launch import Launch
from .model import Model, assumed_model, merge, model_of
from .releases import engine_named, find_release, is_newer_than_seen
from .sites import MODEL_KINDS, Engine, EngineRelease, ModelKind

_SPECIFIC = {"vllm": vllm_command, "sglang": sglang_command}
#: Values of `plan`'s own flags that win over the command's.
OWN_FIELDS = ("tp", "dcp", "pcp", "dp", "max_num_batched_tokens", "max_num_seqs")


class Asked(NamedTuple):
    """What `plan`'s own flags say of an engine; None where not given. Sizes in bytes."""

    engine: str | None = None
    engine_version: str | None = None
    heads: int | None = None
    model: str | None = None
    attention: str | None = None
    tp: int | None = None
    dcp: int | None = None
    pcp: int | None = None
    dp: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_q_len: int | None = None
    workspace_bytes: int | None = None
    sm_count: int = DEFAULT_SM_COUNT


def read_launch(
    asked: Asked, command: Sequence[str], environ: Mapping[str, str]
) -> tuple[Launch, list[str]]:
    """The launch and its notes. `plan`'s own flags win over the command.

    `environ` is what a command would inherit: where its hub cache is, and the workspace's variable.
    Raises `InputError` for what cannot be read.
    """
    notes: list[str] = []
    values: dict[str, Any] = {}
    name = asked.engine
    set_by_command: Mapping[str, str] = {}
    if command:
        parsed = parse_command(command)
        if name is not None and name != parsed.engine:
            raise InputError(f"--engine {name}, but the launch command starts {parsed.engine}")
        name, set_by_command = parsed.engine, {**environ, **parsed.environ}
        read = _read_words(name, parsed.words, parsed.positional_model)
        values = read.values
        notes += _beside(name, read, newer=is_newer_than_seen(name, asked.engine_version))
        if stray := read.positional[int(parsed.positional_model) :]:
            notes.append(f"ignored, words that belong to no flag: {' '.join(stray)}")
    if name is None:
        raise InputError("--engine is missing: pass vllm or sglang")
    engine = engine_named(name)
    release, release_notes = find_release(engine, asked.engine_version)
    notes = [*release_notes, *notes]
    model, model_notes = _model(engine, asked, values, {**environ, **set_by_command})
    own = {key: getattr(asked, key) for key in OWN_FIELDS}
    values.update({key: value for key, value in own.items() if value is not None})
    launch = Launch(
        engine=engine.name,
        version=release.version,
        model=model,
        **_fields(engine, values, release, model),
    )
    launch = launch._replace(
        sm_count=asked.sm_count,
        workspace_bytes=_workspace(engine, asked, set_by_command),
        draft_tokens=_draft_tokens(asked, launch),
    )
    if command and engine.env in environ and asked.workspace_bytes is None:
        notes.append(f"{engine.env} is {launch.workspace_bytes:,}, as set here or in the command")
    return launch, [*notes, *model_notes, *_default_notes(engine, release, values, launch)]


def _draft_tokens(asked: Asked, launch: Launch) -> int:
    if asked.max_q_len is None:
        return launch.draft_tokens
    return whole("max_q_len", asked.max_q_len, least=1, most=1 << 16) - 1


def _read_words(engine: str, words: list[str], positional_model: bool) -> Read:
    """The command's flags, those of its `--config` before them; a positional model wins."""
    specific = _SPECIFIC[engine]
    known = known_flags(engine)
    read = read_flags(words, specific.FLAGS, known)
    path = read.values.pop("config", None)
    if path is not None:
        below = read_flags(config_words(path), specific.FLAGS, known)
        read = Read(
            {**below.values, **read.values},
            read.positional,
            [*below.ignored, *read.ignored],
            [*below.unknown, *read.unknown],
            read.behind,
        )
    if positional_model and read.positional:
        read.values["model"] = read.positional[0]
    elif positional_model and read.behind is not None:
        # `vllm serve --host 0.0.0.0 MODEL -tp 8`: the model stands behind an unknown flag's value.
        read.values.setdefault("model", read.behind)
    return read


def _beside(engine: str, read: Read, *, newer: bool) -> list[str]:
    """Notes on flags that were not read. `InputError` for one that looks like a misspelt one.

    A plan without that size would be wrong. Of a release newer than any looked at it is not known
    which flags it has: a note, then.
    """
    notes = []
    if read.ignored:
        flags = ", ".join(dict.fromkeys(read.ignored))
        notes.append(f"ignored, without a bearing on the workspace: {flags}")
    mine, lent = _spellings(engine), _lent(engine)
    for flag in dict.fromkeys(read.unknown):
        meant = known_flags(engine).meant(flag, mine, lent)
        if meant is not None and not newer:
            raise InputError(
                f"{flag} of the launch command is no flag of {engine}: did you mean {meant}?"
            )
        hint = f"; did you mean {meant}?" if meant else ""
        notes.append(f"ignored, no flag of {engine} that is known here: {flag}{hint}")
    return notes


def _spellings(engine: str) -> dict[str, str]:
    """The spellings of an engine's flags that bear on sizes, with the field of each."""
    return {text: flag.field for flag in _SPECIFIC[engine].FLAGS for text in flag.spellings}


def _lent(engine: str) -> dict[str, str]:
    """What the other engines call such a flag, and `plan` itself: with this one's own spelling."""
    mine = {flag.field: flag.spellings[0] for flag in reversed(_SPECIFIC[engine].FLAGS)}
    theirs = {f"--{name.replace('_', '-')}": name for name in OWN_FIELDS}
    for other in _SPECIFIC:
        theirs = {**theirs, **_spellings(other)}
    return {text: mine[field] for text, field in theirs.items() if field in mine}


def _model(
    engine: Engine, asked: Asked, values: dict[str, Any], environ: Mapping[str, str]
) -> tuple[Model, list[str]]:
    """The model by config, or by heads alone; `--heads` and `--attention` win over a config."""
    name = asked.model or values.get("model")
    kind = _kind(asked.attention)
    if name is None and asked.heads is None:
        raise InputError("no model: pass --model, --heads, or a launch command that names one")
    notes: list[str] = []
    if name is not None:
        path = name if asked.model else values.get("config_path") or name
        revision, cache = values.get("revision"), values.get("cache")
        try:
            config = read_config(path, environ, revision=revision, cache=cache)
        except InputError as error:
            if asked.heads is None or asked.model is not None:
                raise
            notes.append(f"{error}: judged by --heads")
        else:
            model = model_of(name, merge(config, values.get("overrides") or {}))
            return model._replace(heads=asked.heads or model.heads, kind=kind or model.kind), []
    assert asked.heads is not None, "looked at above"  # noqa: S101 - for type checkers
    model = assumed_model(kind or engine.assumed_kind, asked.heads, engine.assumed_architecture)
    return model._replace(name=name or ""), notes if kind else [*notes, engine.assumed_note]


def _kind(attention: str | None) -> ModelKind | None:
    if attention is None:
        return None
    for kind in MODEL_KINDS:
        if kind == attention.replace("-", "_").lower():
            return kind
    raise InputError(f"--attention must be one of {', '.join(MODEL_KINDS)}, got {attention!r}")


def _fields(
    engine: Engine, values: dict[str, Any], release: EngineRelease, model: Model
) -> dict[str, Any]:
    if engine.name == "vllm":
        return vllm_command.launch_fields(values, release, model.max_len)
    return sglang_command.launch_fields(values, release, model.kind, model.max_len)


def _workspace(engine: Engine, asked: Asked, set_by_command: Mapping[str, str]) -> int | None:
    """The variable's value: `--workspace-bytes`, else what the command sets."""
    if asked.workspace_bytes is not None:
        return asked.workspace_bytes
    text = set_by_command.get(engine.env)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{engine.env}={text} is not a whole number of bytes") from None


def _default_notes(
    engine: Engine, release: EngineRelease, values: dict[str, Any], launch: Launch
) -> list[str]:
    """Says which limits are the engine's defaults and not the user's."""
    notes = []
    if "max_num_batched_tokens" not in values:
        seen = "" if release.seen else ", the larger of the releases around it"
        notes.append(
            f"{engine.tokens_flag} not given: {launch.max_num_batched_tokens:,}, the default of "
            f"{engine.name} {release.version} on a B200{seen}"
        )
    if "max_num_seqs" not in values:
        notes.append(f"{engine.seqs_flag} not given: {launch.max_num_seqs:,}, the default")
    return notes
