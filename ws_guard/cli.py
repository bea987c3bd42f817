"""The command line. Exit codes: 0 yes, 1 no, 2 bad usage or input, 3 an internal error."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Annotated, Any, NoReturn

from .settings import SettingError, Settings, parse_size, require_settings
from .sizing import DEFAULT_SM_COUNT, InputError, sm_count_of_gpu

try:
    import typer
except ImportError:
    sys.exit("ws-guard: the command line needs pip install 'ws-guard[exporter]'")

YES, NO, BAD_INPUT, INTERNAL = 0, 1, 2, 3

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Sizes, watches and guards the workspace of FlashInfer's trtllm-gen attention.",
)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> NoReturn:
    """Run the command line and exit with its code; bad input is one line on stderr."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command, return its exit code."""
    try:
        code = typer.main.get_command(app)(arguments, "ws-guard", standalone_mode=False)
    except (InputError, SettingError) as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - the last resort: every way out has a code
        # Usage errors of the parser know how to say themselves in a line.
        usage = getattr(error, "format_message", None)
        if usage is not None:
            return _refuse(f"{usage().rstrip('.')}. See ws-guard --help.")
        traceback.print_exc()
        print("ws-guard: internal error; please report the lines above", file=sys.stderr)
        return INTERNAL
    return code if isinstance(code, int) else YES


def _refuse(message: str) -> int:
    print(f"ws-guard: {' '.join(message.split())}", file=sys.stderr)
    return BAD_INPUT


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


@app.command()
def plan(
    heads: Annotated[int | None, typer.Option(help="Query heads of the model.")] = None,
    model: Annotated[str | None, typer.Option(help="Not yet: comes with the engines.")] = None,
    tp: Annotated[int, typer.Option(help="Tensor parallel size.")] = 1,
    dcp: Annotated[int, typer.Option(help="Decode context parallel size.")] = 1,
    pcp: Annotated[int, typer.Option(help="Prefill context parallel size.")] = 1,
    dp: Annotated[int, typer.Option(help="Data parallel size.")] = 1,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens of the largest step: rows under sparse MLA.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Requests of the largest step, where rows are requests.")
    ] = None,
    max_q_len: Annotated[int, typer.Option(help="Query tokens per row.")] = 1,
    workspace_bytes: Annotated[
        str, typer.Option(help="Workspace size: bytes, or e.g. 394MiB.")
    ] = "394MiB",
    flashinfer: Annotated[
        str | None, typer.Option(help="FlashInfer release (default: the installed one).")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="b200, gb200, b300 or gb300.")] = None,
    sm_count: Annotated[int | None, typer.Option(help="SMs of the GPU.")] = None,
    engine: Annotated[str, typer.Option(help="none; vllm and sglang come later.")] = "none",
    engine_version: Annotated[str | None, typer.Option(help="Not yet.")] = None,
    sweep: Annotated[
        str | None, typer.Option(help="tokens, dcp, tp, heads or q-len=V1,V2,...")
    ] = None,
    plot: Annotated[str | None, typer.Option(help="Image file for a sweep.")] = None,
    as_json: JsonFlag = False,
    command: Annotated[
        list[str] | None, typer.Argument(help="Not yet: a launch command behind --.")
    ] = None,
) -> int:
    """Size a deployment before its launch: can it overflow, and what to set?"""
    _refuse_engines(model=model, engine=engine, engine_version=engine_version, command=command)
    if heads is None and not (sweep or "").startswith("heads="):
        raise InputError("--heads is missing: pass the model's query heads")
    arguments: dict[str, Any] = {
        "heads": heads,
        "tp": tp,
        "dcp": dcp,
        "pcp": pcp,
        "dp": dp,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs,
        "max_q_len": max_q_len,
        "workspace_bytes": _size("--workspace-bytes", workspace_bytes),
        "sm_count": _sm_count(gpu, sm_count),
        "flashinfer": flashinfer,
    }
    if sweep is not None:
        return _sweep(sweep, arguments, plot, as_json)
    if plot is not None:
        raise InputError("--plot draws a sweep: pass --sweep as well")
    return _plan(arguments, as_json)


def _plan(arguments: dict[str, Any], as_json: bool) -> int:
    from . import console, planning

    result = planning.plan(**arguments)
    if as_json:
        _print_json(result._asdict())
    else:
        print(console.plan_text(result))
    return YES if result.fits else NO


def _sweep(text: str, arguments: dict[str, Any], plot: str | None, as_json: bool) -> int:
    from . import console
    from . import sweep as sweeping

    result = sweeping.sweep(text, arguments)
    if plot is not None:
        sweeping.plot(result, plot)
    if as_json:
        rows = zip(result.values, result.plans, strict=True)
        plans = [{"value": value, **each._asdict()} for value, each in rows]
        _print_json({"parameter": result.parameter, "plans": plans})
    else:
        print(console.sweep_text(result.parameter, result.values, result.plans))
    return YES if all(each.fits for each in result.plans) else NO


def _refuse_engines(
    *, model: str | None, engine: str, engine_version: str | None, command: list[str] | None
) -> None:
    """Engines come with a later release: what needs them says so and does nothing."""
    if command:
        raise InputError("a launch command cannot be read yet: pass --heads, --tp, --dcp and so on")
    for flag, value, instead in (
        ("--model", model, "pass --heads"),
        ("--engine-version", engine_version, "pass --flashinfer"),
        ("--engine", engine if engine != "none" else None, "pass --engine none"),
    ):
        if value is not None:
            raise InputError(f"{flag} {value} is not supported yet: {instead}")


def _size(flag: str, text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise InputError(f"{flag}: {error}") from None


def _sm_count(gpu: str | None, sm_count: int | None) -> int:
    if gpu is not None and sm_count is not None:
        raise InputError("--gpu and --sm-count exclude each other: pass one")
    if gpu is not None:
        return sm_count_of_gpu(gpu)
    return DEFAULT_SM_COUNT if sm_count is None else sm_count


@app.command()
def verify(
    strict: Annotated[bool, typer.Option("--strict", help="Unverified is a no as well.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Check the installed FlashInfer's launcher source against the known layouts."""
    from . import console, contract

    try:
        found = contract.installed_contract()
    except contract.NotInstalledError as error:
        raise InputError(f"{error}: install flashinfer-python beside ws-guard") from None
    if as_json:
        answer = {**found._asdict(), "layout": found.layout.name if found.layout else None}
        _print_json(answer)
    else:
        print(console.contract_text(found))
    accepted = ("verified",) if strict else ("verified", "unverified")
    return YES if found.verdict in accepted else NO


BoardOption = Annotated[str | None, typer.Option(help="Board directory (WS_GUARD_BOARD).")]


@app.command()
def serve(
    board: BoardOption = None,
    listen: Annotated[str | None, typer.Option(help="host:port; * is all interfaces.")] = None,
) -> int:
    """Run the exporter over a board: metrics, health, status page."""
    from .exporter import server

    return server.serve(_settings(board=board, listen=listen))


@app.command("run", context_settings={"allow_interspersed_args": False})
def run_command(
    command: Annotated[list[str], typer.Argument(help="What to run, behind --.")],
    board: BoardOption = None,
    listen: Annotated[str | None, typer.Option(help="host:port; * is all interfaces.")] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Set the recommended environment first.")
    ] = False,
) -> int:
    """Run an engine with the probe in its workers and the exporter beside it."""
    from . import run as runner

    settings = _settings(board=board, listen=listen)
    # A run whose board nobody asked for gets one of its own: several do not mix.
    asked = board or os.environ.get("WS_GUARD_BOARD", "").strip() or settings.board_group
    return runner.run(command, settings, private_board=not asked, apply=apply)


@app.command()
def status(
    board: BoardOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Show a board in the terminal: every worker's margins as bars."""
    from .exporter import status as table

    return table.show(_settings(board=board), watch=watch, as_json=as_json)


@app.command()
def demo(
    layout: Annotated[str | None, typer.Option(help="B or C (default: the installed one).")] = None,
    python: Annotated[
        str | None, typer.Option(help="Interpreter whose FlashInfer is used (default: this one).")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="host:port of the exporter.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Play, check over HTTP, end.")] = False,
) -> int:
    """Play the reported crash without a GPU, then the same traffic made to fit."""
    from . import demo as stage

    if layout not in (None, "A", "B", "C"):
        raise InputError(f"--layout is A, B or C, got {layout!r}")
    settings = _settings(listen=listen)
    return stage.run(layout=layout, python=python, listen=settings.listen, once=once)


def _settings(*, board: str | None = None, listen: str | None = None) -> Settings:
    """The environment's settings under the options given; a bad value is an error."""
    options = {"WS_GUARD_BOARD": board, "WS_GUARD_LISTEN": listen}
    given = {name: value for name, value in options.items() if value is not None}
    return require_settings({**os.environ, **given})
