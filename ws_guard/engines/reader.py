"""From a launch command, or from `plan`'s own flags, to a `Launch` and what to say of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ws_guard.sizing import DEFAULT_SM_COUNT, InputError
from ws_guard.sizing.errors import whole

from . import sglang_command, vllm_command
from .command import Command, parse_command
from .command_flags import OWN_FIELDS, notes_on_flags, read_words
from .flags import WHOLE_NUMBER, instead_of
from .hub import read_config
from .launch import Launch
from .model import Model, assumed_model, merge, model_of
from .releases import engine_named, find_release, is_assumed, is_newer_than_seen, refuse_another
from .sites import MODEL_KINDS, Engine, EngineRelease, ModelKind
from .variables import notes_on_variables


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


class _Told(NamedTuple):
    """What a command says: its engine, values of its flags, the variables it finds, notes."""

    engine: str
    values: dict[str, Any]
    environ: Mapping[str, str]
    notes: list[str]
    version: str | None


def read_launch(
    asked: Asked, command: Sequence[str], environ: Mapping[str, str]
) -> tuple[Launch, list[str]]:
    """The launch and its notes. `plan`'s own flags win over the command.

    `environ` is what a command would inherit: where its hub cache is, and the workspace's variable.
    Raises `InputError` for what cannot be read.
    """
    told = _read_command(asked, command, environ) if command else _without_command(asked)
    engine = engine_named(told.engine)
    refuse_another(engine, asked.engine_version)
    release, release_notes = find_release(engine, told.version)
    model, model_notes = _model(engine, asked, told.values, {**environ, **told.environ})
    own = {key: getattr(asked, key) for key in OWN_FIELDS}
    values = {**told.values, **{key: value for key, value in own.items() if value is not None}}
    launch = Launch(
        engine=engine.name,
        version=release.version,
        model=model,
        **_fields(engine, values, release, model),
    )
    launch = launch._replace(
        sm_count=asked.sm_count,
        workspace_bytes=_workspace(engine, asked, told.environ),
        version_assumed=is_assumed(engine, told.version),
        draft_tokens=_draft_tokens(asked, launch),
    )
    notes = [*release_notes, *told.notes, *_notes_on_own(told.values, own)]
    if command and engine.env in environ and asked.workspace_bytes is None:
        notes.append(f"{engine.env} is {launch.workspace_bytes:,}, as set here or in the command")
    return launch, [*notes, *model_notes, *_default_notes(engine, release, values, launch)]


def _notes_on_own(values: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Says where `plan`'s own flags, which win, differ from the command's."""
    for field, mine in own.items():
        theirs = values.get(field)
        if mine is not None and theirs is not None and mine != theirs:
            flag = f"--{field.replace('_', '-')}"
            yield f"{flag} {mine} of ws-guard plan wins over {theirs} of the launch command"


def _without_command(asked: Asked) -> _Told:
    if asked.engine is None:
        raise InputError("--engine is missing: pass vllm or sglang")
    return _Told(asked.engine, {}, {}, [], asked.engine_version)


def _read_command(asked: Asked, command: Sequence[str], environ: Mapping[str, str]) -> _Told:
    parsed = parse_command(command)
    engine = parsed.engine
    if asked.engine not in (None, engine):
        raise InputError(f"--engine {asked.engine}, but the launch command starts {engine}")
    version = asked.engine_version or parsed.image_version
    newer = is_newer_than_seen(engine, version)
    read = read_words(parsed)
    notes = [
        *_notes_on_image(parsed, asked.engine_version),
        *notes_on_flags(parsed, read, newer=newer),
        *notes_on_variables(engine, parsed.environ, environ, newer=newer),
    ]
    return _Told(engine, read.values, {**environ, **parsed.environ}, notes, version)


def _notes_on_image(command: Command, wanted: str | None) -> Iterator[str]:
    """Says what the tag of the engine's image told of its release, or did not."""
    if command.image is None:
        return
    if command.image_version is None:
        yield f"the image {command.image} does not tell its release: pass --engine-version"
    elif wanted is None:
        yield f"judged as {command.engine} {command.image_version}, by the image {command.image}"
    elif wanted.removeprefix("v") != command.image_version:
        yield f"--engine-version {wanted} wins over the image {command.image}"


def _draft_tokens(asked: Asked, launch: Launch) -> int:
    if asked.max_q_len is None:
        return launch.draft_tokens
    return whole("max_q_len", asked.max_q_len, least=1, most=1 << 16) - 1


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
                if "$" in name:
                    raise InputError(f"model {name}: {instead_of(name, name)}") from None
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
        size = int(text)
    except ValueError:
        wrong = f"{engine.env}={text} is not a whole number of bytes"
        raise InputError(f"{wrong}: {instead_of(text, WHOLE_NUMBER)}") from None
    return whole(engine.env, size, least=1)


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
