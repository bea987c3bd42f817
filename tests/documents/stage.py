"""Where the documents' commands run: a copy of the tree, a board, an exporter, a few files that a
reader would have at hand, and a PATH on which there is nothing but what `programs.py` knows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from blocks import ROOT
from messages import overflow
from programs import PROGRAMS
from slot_worker import CRASH_PLAN, SlotWorker
from stand_in import make_package

from ws_guard.board import Board

#: The crash that the documents tell of, as vLLM's log has it.
CRASH_LOG = f"""\
(APIServer pid=7) INFO 07-05 11:59:58 [api_server.py:9] vLLM API server version 0.26.0
(APIServer pid=7) INFO 07-05 11:59:58 [utils.py:253] non-default args: \
{{'model': 'zai-org/GLM-5.2', 'tensor_parallel_size': 8, 'decode_context_parallel_size': 8, \
'max_num_batched_tokens': 16384}}
(Worker_TP0_DCP0 pid=9) ERROR 07-05 12:00:01 [core.py:9] \
{overflow("trtllm_gen_softmax_workspace", 1_611_661_312, 404_750_336)}
"""
#: A model as far as a plan asks: 64 heads, sparse MLA, 78 layers.
CONFIG = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "num_attention_heads": 64,
    "num_hidden_layers": 78,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_topk": 2048,
    "index_head_dim": 128,
}
#: A process that calls FlashInfer: two steps, of which the second is the reported one.
SERVE_PY = """\
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "packages"))
from flashinfer import calls

for rows in (3_080, 12_288):
    calls.decode(rows)
"""
#: Tools of the system that the documents use, as they are.
SYSTEM = ("bash", "sh", "cat", "grep", "head", "id", "ls", "mkdir", "rm", "sed", "tail")

_BUILT = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
#: What a command of the documents has a place of this stage for.
_PLACES = re.compile(
    # The board of a pod, of a host and of a user.
    r"(?P<board>(?<![\w/.])/board\b(?!/)|/dev/shm/ws_guard(?:-\w+)?\b)"
    # What a reader is to make.
    r"|(?P<made>(?<![\w/.])/tmp(?=/))"
    # The exporter's own default address.
    r"|(?P<port>(?<=127\.0\.0\.1:)19456)"
)


class Done(NamedTuple):
    """A command as it ended. `output` has both streams, in order."""

    command: str
    code: int
    output: str


class Stage:
    """A directory like a checkout, and how a command is run there."""

    def __init__(self, home: Path, exporter: str) -> None:
        self.directory = home / "checkout"
        self.board = home / "board"
        self.exporter = exporter
        self._home = home
        self._bin = home / "bin"
        self._bin.mkdir()
        _put_tree(self.directory)
        _put_files(self.directory)
        for name in SYSTEM:
            found = shutil.which(name)
            assert found, name
            (self._bin / name).symlink_to(found)
        for name in PROGRAMS:
            stand_in = f"{sys.executable} {Path(__file__).parent}/programs.py {name}"
            script = f'#!/bin/sh\nexec {stand_in} "$@"\n'
            (self._bin / name).write_text(script)
            (self._bin / name).chmod(0o755)
        # As `make` would have made it.
        (self.directory / ".venv").mkdir()
        (self.directory / ".venv" / "bin").symlink_to(self._bin)

    def place(self, text: str) -> str:
        """A command with this stage's board and port in place of those of the documents."""
        port = self.exporter.rpartition(":")[2]
        told = {"board": str(self.board), "made": str(self._home), "port": port}
        return _PLACES.sub(lambda match: told[match.lastgroup or ""], text)

    def beside(self, name: str) -> Path:
        """Where the commands of a document run: those in a manifest's head beside it."""
        path = self.directory / name
        return path.parent if path.exists() and path.suffix != ".md" else self.directory

    def environment(self) -> dict[str, str]:
        """No setting of this machine's but these."""
        return {
            "PATH": str(self._bin),
            "HOME": str(self._home),
            # What was compiled before need not be again.
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", f"{Path.home()}/.cache"),
            "PYTHONPATH": str(ROOT),
            "HF_HUB_CACHE": str(self.directory / "hub"),
            "WS_GUARD_BOARD": str(self.board),
            "WS_GUARD_LISTEN": "127.0.0.1:0",
            "COLUMNS": "120",
            # What the runbook asks its reader to put in, and what stand-ins must know.
            "NS": "vllm",
            "POD": "vllm-0",
            "DOCUMENTED_PATH": os.environ["PATH"],
            "DOCUMENTED_EXPORTER": self.exporter,
        }

    def run(self, script: str, directory: Path | None = None) -> list[Done]:
        """A block, a command at a time, in one directory; what is exported stays exported."""
        done: list[Done] = []
        kept = ""
        for command in commands_of(self.place(script)):
            if re.match(r"(export|cd) ", command):
                kept += f"{command}\n"
            process = subprocess.run(
                [self._bin / "bash", "--norc", "-c", f"set -uo pipefail\n{kept}{command}"],
                cwd=directory or self.directory,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=120,
            )
            done.append(Done(command, process.returncode, process.stdout))
        return done


def commands_of(script: str) -> list[str]:
    """The commands of a block: lines, put together as far as a shell wants more of them."""
    found: list[str] = []
    pending = ""
    for line in script.split("\n"):
        pending = f"{pending}\n{line}" if pending else line
        if not pending.strip() or pending.lstrip().startswith("#"):
            pending = ""
        elif _is_whole(pending):
            found.append(pending)
            pending = ""
    assert not pending, f"a command without an end: {pending}"
    return found


def _is_whole(command: str) -> bool:
    if command.endswith("\\"):
        return False
    asked = subprocess.run(
        ["bash", "-n"], input=command, capture_output=True, text=True, check=False
    )
    if "here-document" in asked.stderr or "unexpected end of file" in asked.stderr:
        return False
    if "unexpected EOF" in asked.stderr:
        return False
    assert asked.returncode == 0, asked.stderr
    return True


def _put_tree(directory: Path) -> None:
    """A copy, so that nothing that a block does reaches the tree itself."""
    directory.mkdir()
    for path in ROOT.iterdir():
        if path.name.startswith(".") or path.name in ("build", "dist"):
            continue
        if path.is_dir():
            shutil.copytree(path, directory / path.name, ignore=_BUILT)
        else:
            shutil.copy(path, directory)


def _put_files(directory: Path) -> None:
    for name in ("engine.log", "crash.log"):
        (directory / name).write_text(CRASH_LOG)
    # Models that stand for a reader's own; those with a name of the hub are not at hand.
    snapshot = directory / "hub" / "models--some--model" / "snapshots" / "main"
    for folder in (snapshot, directory / "MODEL"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(CONFIG))
    (directory / "serve.py").write_text(SERVE_PY)
    (directory / "packages").mkdir()
    make_package(directory / "packages")


def fill_board(path: Path) -> SlotWorker:
    """The reported crash on a board: rank 0 lives, rank 3 died of a refused step."""
    board = Board(str(path))
    living = SlotWorker(board, rank="0", planned=[CRASH_PLAN])
    living.call(3_080)
    dead = SlotWorker(board, rank="3", planned=[CRASH_PLAN])
    dead.call(3_080)
    dead.overflow(12_288)
    dead.die()
    return living
