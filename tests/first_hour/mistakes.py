"""What a newcomer may type in the first hour, and the one line that is said to it.

Every command runs as written, in the directory that the fixture `place` fills; `$OTHERS` is another
user's board and `$TAKEN` an address that is in use. Bad usage and what cannot be read is 2.
"""

from __future__ import annotations

from typing import NamedTuple

STEP = "--heads 64 --max-num-batched-tokens 16384"
VLLM = "--heads 64 --engine-version 0.33.0 -- vllm serve glm"
NO_FLAG = "of the launch command is no flag of vllm: did you mean"
NOT_HERE = "pass --model DIRECTORY (or a config.json), or --heads"
INSTALL = 'import ws_guard; ws_guard.install(board="board")'
INSTALL_THERE = "import ws_guard; ws_guard.install()"


class Mistake(NamedTuple):
    """A command as typed, what its one line on standard error holds, and its exit code."""

    command: str
    says: str
    code: int = 2


MISTAKES: dict[str, list[Mistake]] = {
    "a wrong word": [
        Mistake("ws-guard", "Missing command. See ws-guard --help."),
        Mistake("ws-guard plna", "No such command 'plna'"),
        Mistake("ws-guard plan --hedas 64", "No such option: --hedas"),
        Mistake("ws-guard plan --heads 64x", "Invalid value for '--heads'"),
        Mistake("ws-guard help plna", "No such command 'plna'"),
        Mistake("ws-guard status --borad x", "See ws-guard status --help."),
        Mistake("ws-guard run", "Missing argument 'command'. See ws-guard run --help."),
    ],
    "a size that is missing, or none": [
        Mistake("ws-guard plan", "--heads is missing: pass the model's query heads"),
        Mistake("ws-guard plan --heads 64", "--max-num-batched-tokens is missing: pass the tokens"),
        Mistake(f"ws-guard plan {STEP} --tp 0", "--tp must be between 1 and 1,048,576, got 0"),
        Mistake(f"ws-guard plan {STEP} --tp 8 --dcp 3", "--dcp 3 must divide tp x pcp = 8; change"),
        Mistake(
            f"ws-guard plan {STEP} --workspace-bytes 394M",
            "--workspace-bytes: '394M' is not a size; write bytes or e.g. 394MiB",
        ),
    ],
    "a misspelt flag of the launch command": [
        Mistake(
            f"ws-guard plan {VLLM} --max-num-batched-tokenz 16384",
            f"--max-num-batched-tokenz {NO_FLAG} --max-num-batched-tokens?",
        ),
        Mistake(f"ws-guard plan {VLLM} --tp 8", f"--tp {NO_FLAG} --tensor-parallel-size?"),
        Mistake(f"ws-guard plan {VLLM} -tp8", f"-tp8 {NO_FLAG} -tp 8?"),
        Mistake(f"ws-guard plan {VLLM} -tp eight", "-tp of the launch command: 'eight' cannot be"),
        Mistake(
            "ws-guard plan -- vllm serve glm --heads 64",
            f"--heads {NO_FLAG} --heads of ws-guard plan, before the command?",
        ),
        Mistake(
            "ws-guard plan -- VLLM_FLASHINFER_WORKSPACE_BUFER_SIZE=2561671168 vllm serve glm",
            "VLLM_FLASHINFER_WORKSPACE_BUFER_SIZE of the launch command is no variable of vllm: "
            "did you mean VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE?",
        ),
        Mistake("ws-guard plan -- vllm bench", "it needs 'vllm serve', 'sglang serve', or"),
    ],
    "a launch command that is none, or hides in another": [
        Mistake("ws-guard plan -- $UNSET", "nothing stands behind --: write the launch command"),
        Mistake('ws-guard plan -- "$UNSET"', "there, ws-guard plan -- vllm serve MODEL"),
        Mistake("ws-guard run -- $UNSET", "Missing argument 'command'. See ws-guard run --help."),
        Mistake(
            "ws-guard plan -- bash -c 'exec vllm serve glm -tp 8'",
            "; write what stands in the quotes without them: vllm serve ...",
        ),
        Mistake(
            "ws-guard plan -- docker run --gpus all vllm/vllm-openai --model glm -tp 8",
            "; write what the container starts: vllm serve MODEL, and the flags behind the image",
        ),
    ],
    "a model that is not here": [
        Mistake("ws-guard plan -- vllm serve zai-org/GLM-5.2", NOT_HERE),
        Mistake("env -u HF_HUB_CACHE HOME=/proc/x ws-guard plan -- vllm serve org/model", NOT_HERE),
        Mistake("ws-guard plan -- vllm serve", "no model: pass --model, --heads"),
        Mistake("ws-guard plan --engine vllm --model empty", "empty holds no config.json: pass"),
        Mistake("ws-guard plan --engine vllm --model broken", "broken/config.json cannot be read"),
        Mistake("ws-guard plan --engine vllm --model other", "num_attention_heads: pass --heads"),
    ],
    "a FlashInfer that is too old, or none": [
        Mistake(f"ws-guard plan {STEP} --flashinfer 0.2.5", "--flashinfer 0.2.5 is older than"),
        Mistake(
            "PYTHONPATH=old:$PYTHONPATH ws-guard verify",
            "flashinfer 0.2.5 ships no trtllm_fmha_kernel_launcher.cu: install flashinfer-python "
            "0.6.8.post1 or newer beside ws-guard",
        ),
        Mistake(
            f"PYTHONPATH=old:$PYTHONPATH python -S -c '{INSTALL}'",
            "flashinfer 0.2.5 ships no trtllm_fmha_kernel_launcher.cu, no call will be seen: "
            "install flashinfer-python 0.6.8.post1 or newer into this environment",
            code=0,
        ),
        Mistake(
            f"python -S -c '{INSTALL}'",
            "flashinfer is not installed, no call will be seen: install flashinfer-python",
            code=0,
        ),
        Mistake("ws-guard demo --python missing", "--python missing: No such file or directory"),
        Mistake("ws-guard demo --layout D", "--layout is A, B or C, got 'D'"),
    ],
    "installed too late": [
        Mistake(
            "PYTHONPATH=stand-in:$PYTHONPATH python late.py",
            "objects that hold native functions already: their calls are not seen; install "
            "ws_guard before the engine's first step",
            code=0,
        ),
    ],
    "an extra that is not installed": [
        Mistake(
            "PYTHONPATH=bare:$PYTHONPATH ws-guard serve",
            "the command line needs pip install 'ws-guard[exporter]'",
        ),
        Mistake(
            f"PYTHONPATH=no-plot:$PYTHONPATH ws-guard plan {STEP} --sweep tokens=1,2 --plot x.png",
            "pip install 'ws-guard[plot]'",
        ),
    ],
    "an address that cannot be had": [
        Mistake("ws-guard serve --listen 19456", "--listen '19456' is not allowed: it is not host"),
        Mistake("WS_GUARD_LISTEN=19456 ws-guard serve", "WS_GUARD_LISTEN='19456' is not allowed"),
        *(
            Mistake(
                f"ws-guard {command.format('--listen $TAKEN')}",
                "Address already in use; set WS_GUARD_LISTEN, or --listen, to a free host:port, "
                "or to 127.0.0.1:0 for any that is free",
            )
            for command in ("serve {}", "run {} -- true", "demo {}")
        ),
        Mistake("WS_GUARD_TLS_CERT=x WS_GUARD_TLS_KEY=x ws-guard serve", "readable PEM file"),
        Mistake("WS_GUARD_BASIC_AUTH_FILE=x ws-guard serve", "make it with htpasswd -B"),
    ],
    "a board that is not there, or not ours": [
        Mistake("ws-guard explain --board typo", "board typo: there is no such directory; pass"),
        Mistake("ws-guard status --board $OTHERS", "set WS_GUARD_BOARD_GROUP to share it, or"),
        Mistake("ws-guard run --board $OTHERS -- true", "set WS_GUARD_BOARD_GROUP to share it, or"),
        Mistake("ws-guard status --board late.py", "the board is not a directory; set WS_GUARD_BO"),
        Mistake("ws-guard run --board late.py -- true", "late.py is not a directory; set WS_GUARD"),
        Mistake("ws-guard run --board late.py/x -- true", "x: Not a directory; set WS_GUARD_BOARD"),
        Mistake("ws-guard run --board /proc/x -- true", "/proc/x: nothing can be made in /proc: "),
        Mistake(
            "ln -sfn nowhere link; ws-guard run --board link -- true",
            "link: nothing can be made in",
        ),
        *(
            Mistake(f"ws-guard serve --board {board}", f"board {board} is not a directory; --board")
            for board in ("late.py", "late.py/x")
        ),
        Mistake(
            "WS_GUARD_BOARD_GROUP=$(id -g) ws-guard run --board typo -- true",
            "typo: make the shared one first",
        ),
        Mistake("WS_GUARD_BOARD_GROUP=nogroup-x ws-guard status", "there is no such group"),
        Mistake(
            "WS_GUARD_BOARD=$OTHERS PYTHONPATH=stand-in:$PYTHONPATH "
            f"python -S -c '{INSTALL_THERE}'",
            "set WS_GUARD_BOARD_GROUP to share it, or WS_GUARD_BOARD to another directory",
            code=0,
        ),
    ],
    "a setting that is none": [
        Mistake("WS_GUARD_STRICT=maybe ws-guard verify", "WS_GUARD_STRICT='maybe' is not allowed"),
        Mistake(
            "WS_GUARD_ON_OVERFLOW=rasie PYTHONPATH=stand-in:$PYTHONPATH "
            f"python -S -c '{INSTALL}'",
            "WS_GUARD_ON_OVERFLOW has a value that is not allowed: use observe or raise or split; "
            "the default is used",
            code=0,
        ),
        *(
            Mistake(
                f"WS_GUARD_SZIING=off {command}",
                "WS_GUARD_SZIING is no setting: did you mean WS_GUARD_SIZING?",
                code=code,
            )
            for command, code in (
                ("ws-guard run -- true", 0),
                ("ws-guard status --board typo", 1),
                (f"PYTHONPATH=stand-in:$PYTHONPATH python -S -c '{INSTALL}'", 0),
            )
        ),
    ],
    "a program or log that is not there": [
        Mistake("ws-guard run -- vlm serve glm", "vlm: command not found; name a program behind"),
        Mistake("ws-guard run -- ./late.py", "./late.py: Permission denied; name a program"),
        Mistake("ws-guard run --apply -- vllm serve glm", "--apply: vllm is not installed beside"),
        Mistake(
            "PYTHONPATH=engine:$PYTHONPATH ws-guard run --apply -- vllm serve org/model",
            "--apply asks ws-guard plan, which says: model org/model is neither a path nor in",
        ),
        Mistake("ws-guard explain engine.log", "engine.log cannot be read: No such file or direct"),
        Mistake("ws-guard explain empty", "empty is a directory: name a log file, or pass --board"),
        Mistake("ws-guard explain late.py", "no known fault of a workspace in late.py", code=1),
    ],
    "no card": [
        Mistake(
            "CUDA_VISIBLE_DEVICES= python $TESTS/gpu/xqa_painting.py",
            "finds no CUDA device; run it by a Python with both for the card",
        ),
    ],
}  # fmt: skip
