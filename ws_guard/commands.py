"""What can be typed: every command with its options. What a command does is elsewhere."""

from __future__ import annotations

import os
from typing import Annotated, Any

from . import console, plan_command
from .exits import NO, YES
from .remarks import remark
from .settings import SettingError, Settings, misspelt_settings, require_settings
from .sizing import OLDEST_SEEN, InputError
from .version import __version__

try:
    import typer
    from typer.core import TyperCommand
except ImportError:
    # A bare install serves workers. 1 would mean "does not fit" to whoever asked for a plan.
    raise InputError("the command line needs pip install 'ws-guard[exporter]'") from None

app = typer.Typer(
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class _TakesCommand(TyperCommand):
    """Takes a command behind `--`; an unset variable there is none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own
        """Parse; `InputError` where nothing stands behind `--`."""
        has_dashes = "--" in args
        rest = super().parse_args(ctx, args)
        if has_dashes and not any(word.strip() for word in ctx.params["command"] or []):
            example = f"{ctx.command_path} -- vllm serve MODEL"
            raise InputError(f"nothing stands behind --: write the launch command there, {example}")
        return rest


def run_typed(arguments: list[str]) -> object:
    """Run one command; its exit code, or None. Bad usage and input are exceptions."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    command = typer.main.get_command(app)
    return command(arguments, "ws-guard", standalone_mode=False)


JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ws-guard {__version__}")
        raise typer.Exit


@app.callback()
def _every_command(
    version: Annotated[  # noqa: ARG001 - its callback has seen it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Sizes, watches and guards the workspace of FlashInfer's trtllm-gen attention.

    Every command that reports takes --json. Exit codes: 0 yes, 1 no, 2 bad usage or input, said in
    one line on standard error, 3 an internal error; run passes on its command's.
    """
    require_settings()
    for line in misspelt_settings():
        remark(f"ws-guard: {line}")


# What stands behind the engine's name is the engine's, with a -- before it or without.
@app.command(cls=_TakesCommand, context_settings={"allow_interspersed_args": False})
def plan(
    heads: Annotated[int | None, typer.Option(help="Query heads of the model.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Directory, config.json, or an id in the hub cache.")
    ] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor parallel size (1).")] = None,
    dcp: Annotated[int | None, typer.Option(help="Decode context parallel size (1).")] = None,
    pcp: Annotated[int | None, typer.Option(help="Prefill context parallel size (1).")] = None,
    dp: Annotated[int | None, typer.Option(help="Data parallel size (1).")] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens of the largest step: rows under sparse MLA.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Requests of the largest step, where rows are requests.")
    ] = None,
    max_q_len: Annotated[int | None, typer.Option(help="Query tokens per row (1).")] = None,
    workspace_bytes: Annotated[
        str | None,
        typer.Option(help="Bytes or e.g. 394MiB (the default); with an engine its variable's."),
    ] = None,
    flashinfer: Annotated[
        str | None, typer.Option(help="FlashInfer release (default: the engine's, the installed).")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="b200, gb200, b300 or gb300.")] = None,
    sm_count: Annotated[int | None, typer.Option(help="SMs of the GPU.")] = None,
    engine: Annotated[str | None, typer.Option(help="none (the default), vllm or sglang.")] = None,
    engine_version: Annotated[
        str | None, typer.Option(help="Engine release (default: its image's, the installed).")
    ] = None,
    attention: Annotated[
        str | None, typer.Option(help="With an engine: sparse_mla, mla, gqa or dsv4.")
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(help="tokens, dcp, tp, heads or q-len=V1,V2,...")
    ] = None,
    plot: Annotated[str | None, typer.Option(help="Image file for a sweep.")] = None,
    as_json: JsonFlag = False,
    command: Annotated[
        list[str] | None, typer.Argument(help="A launch command: -- vllm serve ...")
    ] = None,
) -> int:
    """Size a deployment before its launch: can it overflow, and what to set?

    \b
    Exit codes: 0 it fits, 1 it does not, 2 bad input.
    ws-guard plan --heads 64 --tp 8 --dcp 8 --max-num-batched-tokens 16384
    ws-guard plan --engine-version 0.26.0 --heads 64 -- vllm serve MODEL -tp 8 -dcp 8
    """
    # Every option by its name.
    return plan_command.run(plan_command.Asked(**locals()))


@app.command()
def verify(
    strict: Annotated[bool, typer.Option("--strict", help="Unverified is a no as well.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Check the installed FlashInfer's launcher source against the known layouts.

    \b
    Exit codes: 0 verified, or unverified without --strict; 1 not; 2 there is none.
    ws-guard verify --strict
    """
    from . import contract

    try:
        found = contract.installed_contract()
    except contract.NotInstalledError as error:
        needed = f"flashinfer-python {OLDEST_SEEN} or newer"
        raise InputError(f"{error}: install {needed} beside ws-guard") from None
    if as_json:
        answer = {**found._asdict(), "layout": found.layout.name if found.layout else None}
        console.print_json(answer)
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
    """Run the exporter over a board: metrics, health, status page.

    \b
    Exit codes: 0 ended by SIGTERM or Ctrl-C, 2 it cannot serve as asked.
    ws-guard serve --listen '*:19456'
    """
    from .exporter import server

    return server.serve(_settings(board=board, listen=listen))


@app.command("run", cls=_TakesCommand, context_settings={"allow_interspersed_args": False})
def run_command(
    command: Annotated[list[str], typer.Argument(help="What to run, behind --.")],
    board: BoardOption = None,
    listen: Annotated[str | None, typer.Option(help="host:port; * is all interfaces.")] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Set the recommended environment first.")
    ] = False,
) -> int:
    """Run an engine with the probe in its workers and the exporter beside it.

    \b
    Exit codes: the command's, 128+n where signal n ended it; 2 it never started.
    ws-guard run -- vllm serve MODEL -tp 8
    """
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
    """Show a board in the terminal: every worker's margins as bars.

    \b
    Exit codes: 0 ready; 1 not ready, or no board yet; 2 it cannot be read.
    ws-guard status --watch
    """
    from .exporter import status as table

    return table.show(_settings(board=board), watch=watch, as_json=as_json)


@app.command()
def explain(
    log: Annotated[str | None, typer.Argument(help="A log; - or none: standard input.")] = None,
    board: Annotated[
        str | None, typer.Option(help="Board directory: dead workers' slots instead of a log.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """From a crash log, or from dead workers' slots, to the setting that fixes it.

    \b
    Exit codes: 0 found, 1 no fault that is known, 2 it cannot be read.
    ws-guard explain engine.log
    """
    from . import explain_command

    settings = _settings(board=board)
    return explain_command.run(log, settings, on_board=board is not None, as_json=as_json)


@app.command()
def demo(
    layout: Annotated[str | None, typer.Option(help="B or C (default: the installed one).")] = None,
    python: Annotated[
        str | None, typer.Option(help="Interpreter whose FlashInfer is used (default: this one).")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="host:port of the exporter.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Play, check over HTTP, end.")] = False,
    pause: Annotated[
        int, typer.Option(min=0, help="Seconds that the crash stays on the status page.")
    ] = 60,
) -> int:
    """Play the reported crash without a GPU, then the same traffic made to fit.

    \b
    Exit codes: 0 every check passed, 1 one failed, 2 no such FlashInfer.
    ws-guard demo --once
    """
    from .demo.play import play

    if layout not in (None, "A", "B", "C"):
        raise InputError(f"--layout is A, B or C, got {layout!r}")
    settings = _settings(listen=listen)
    return play(
        layout=layout, python=python, listen=settings.listen, pause=0 if once else pause, once=once
    )


def _settings(*, board: str | None = None, listen: str | None = None) -> Settings:
    """The environment's settings under the options given; a bad value is an error."""
    options = {"WS_GUARD_BOARD": ("--board", board), "WS_GUARD_LISTEN": ("--listen", listen)}
    given = {name: value for name, (_, value) in options.items() if value is not None}
    try:
        return require_settings({**os.environ, **given})
    except SettingError as error:
        # What was wrong is the option, for whoever gave one.
        name, _, rest = str(error).partition("=")
        raise SettingError(f"{options[name][0]} {rest}" if name in given else str(error)) from None
