"""A fuzzer that looks for new paths: `python tests/explain/fuzz_log.py -max_total_time=300`.

Needs atheris, in an environment of its own (`make nightly` makes it). Any error but `InputError`
ends it with the input written down.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ws_guard"]):
    from ws_guard.explain.logs import explain_log
    from ws_guard.explain.text import findings_text
    from ws_guard.sizing import InputError

sys.path.insert(0, str(Path(__file__).parent))

from formats import FORMATS
from messages import NO_HUB, old_overflow, out_of_memory, overflow, short_counter

#: What the fuzzer starts from, in every format.
SEEDS = [
    "non-default args: {'tensor_parallel_size': 8, 'decode_context_parallel_size': 8}",
    '"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128',
    overflow("trtllm_gen_softmax_workspace", 1_611_661_312, 404_750_336),
    old_overflow("batch_prefill_tmp_v", 458_752_000),
    short_counter(64, 3_145_728),
    out_of_memory("394.00 MiB", "286.31 MiB"),
]
_LOG = Path(tempfile.mkdtemp()) / "log"


def one_input(content: bytes) -> None:
    """Explain one log."""
    _LOG.write_bytes(content)
    try:
        findings = explain_log(str(_LOG), NO_HUB)
    except InputError:
        return
    findings_text(findings)


def main() -> None:
    """Fuzz until the time is up."""
    corpus = Path(tempfile.mkdtemp())
    for number, wrap in enumerate(FORMATS):
        (corpus / str(number)).write_bytes(wrap(SEEDS))
    atheris.Setup([sys.argv[0], *sys.argv[1:], "-max_len=16384", str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
