"""An engine's own command-line parser: `parser.py ENGINE LINES [DIRECTORY]`, printing JSON.

LINES is JSON, a list of lists of words: which of them does the parser take? And which flags does it
have, with how many values? There is no GPU; what needs none of it is what the engine would do.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from unittest.mock import MagicMock

sys.path[:0] = sys.argv[3:]


def vllm_parser() -> argparse.ArgumentParser:
    """That of `vllm serve`, which wants to know what device there is."""
    from vllm.platforms import current_platform

    type(current_platform).device_type = "cpu"
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser
    except ImportError:
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    parser: argparse.ArgumentParser = make_arg_parser(FlexibleArgumentParser())
    return parser


def sglang_parser() -> argparse.ArgumentParser:
    """That of `sglang.launch_server`, which would print into a notebook."""
    sys.modules.update({name: MagicMock() for name in ("IPython", "IPython.display")})
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


def takes(parser: argparse.ArgumentParser, words: list[str]) -> bool:
    """Whether the parser takes these words; its error goes nowhere."""
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            parser.parse_args(words)
        except SystemExit:
            return False
    return True


def main() -> None:
    parser = {"vllm": vllm_parser, "sglang": sglang_parser}[sys.argv[1]]()
    flags = {
        spelling: "1" if action.nargs is None else str(action.nargs)
        for spelling, action in parser._option_string_actions.items()
    }
    taken = [takes(parser, words) for words in json.loads(sys.argv[2])]
    print(json.dumps({"flags": flags, "taken": taken}))


if __name__ == "__main__":
    main()
