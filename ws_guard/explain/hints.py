"""What a log tells beside its faults: flags, versions, GPU, the model's heads. Words as data."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ws_guard.engines import sglang_command, vllm_command
from ws_guard.engines.command import parse_command
from ws_guard.engines.flags import read_flags
from ws_guard.engines.known_flags import known_flags
from ws_guard.sizing import InputError

from . import devices

#: Fields by the names under which configs, flags and banners write them.
NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tp", ("tensor_parallel_size", "tensor-parallel-size", "tp_size", "tp-size")),
    (
        "dcp",
        (
            "decode_context_parallel_size",
            "decode-context-parallel-size",
            "dcp_size",
            "dcp-size",
        ),
    ),
    ("dp", ("data_parallel_size", "data-parallel-size", "dp_size", "dp-size")),
    ("pcp", ("prefill_context_parallel_size", "prefill-context-parallel-size")),
    (
        "tokens",
        (
            "max_num_batched_tokens",
            "max-num-batched-tokens",
            "chunked_prefill_size",
            "chunked-prefill-size",
        ),
    ),
    (
        "seqs",
        ("max_num_seqs", "max-num-seqs", "max_running_requests", "max-running-requests"),
    ),
    ("draft_tokens", ("num_speculative_tokens", "speculative_num_draft_tokens")),
    ("heads", ("num_attention_heads",)),
    ("kv_heads", ("num_key_value_heads",)),
    ("head_dim", ("head_dim", "head_size")),
    ("sm_count", ("sm_count", "num_sms")),
    (
        "workspace",
        ("VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", "SGLANG_FLASHINFER_WORKSPACE_SIZE"),
    ),
)
#: Names that one engine alone uses.
_ENGINE_NAMES = {
    "max_num_batched_tokens": "vllm",
    "max-num-batched-tokens": "vllm",
    "max_num_seqs": "vllm",
    "max-num-seqs": "vllm",
    "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": "vllm",
    "chunked_prefill_size": "sglang",
    "chunked-prefill-size": "sglang",
    "max_running_requests": "sglang",
    "max-running-requests": "sglang",
    "SGLANG_FLASHINFER_WORKSPACE_SIZE": "sglang",
}
_FIELD_OF = {name: field for field, names in NAMES for name in names}
_SHORT = ("tp", "dcp", "dp", "pcp")
#: Only in dumps that hold every flag that is not its default: what they lack has its default.
_COMPLETE = (b"non-default args: {", b"ServerArgs(")

#: Starts of an engine, each with its flags near: searched for in a whole log, however large.
ANCHORS: tuple[bytes, ...] = (b"LLM engine (v", b"ServerArgs(")

_VALUE = re.compile(
    r"[\\'\"]{0,4}\s{0,2}(?:[:=]\s{0,2}|\s)[\\'\"]{0,4}(\d{1,3}(?:,\d{3})+|\d{1,15})([kK]?)\b"
)
_FRACTION = re.compile(r"[\\'\"]{0,4}\s{0,2}(?:[:=]\s{0,2}|\s)(0?\.\d{1,6})")
_VERSION = r"v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?[\w.+]{0,60})"
_SEPARATOR = r"(?:==|\s+version:?\s*|['\"]?\s*[:=]\s*['\"]?|\s+|-)"
_VERSIONS: tuple[tuple[str, bytes, re.Pattern[str]], ...] = (
    ("vllm", b"LLM engine (v", re.compile(r"LLM engine \(v([^)\s]{1,80})\)")),
    ("vllm", b"vLLM", re.compile(rf"vLLM(?: API server)? [vV]ersion\s*:?\s*{_VERSION}")),
    *(
        ("vllm", needle, re.compile(rf"vllm(?:==|-|-openai:|: |\s+){_VERSION}"))
        for needle in (b"vllm==", b"vllm-0", b"vllm-1", b"vllm-openai:", b"vllm: ", b"vllm  ")
    ),
    *(
        ("sglang", needle, re.compile(rf"sglang(?:==|-|:\s*|\s+){_VERSION}"))
        for needle in (b"sglang==", b"sglang-0", b"sglang:", b"sglang  ", b"sglang 0")
    ),
    ("flashinfer", b"lashinfer", re.compile(
        rf"lashinfer(?:[-_]python)?(?:_version)?{_SEPARATOR}{_VERSION}"
    )),
    ("flashinfer", b"lashInfer", re.compile(rf"lashInfer{_SEPARATOR}{_VERSION}")),
)  # fmt: skip
#: Words that name an engine, and how much each says: a name alone may be said in passing.
_ENGINE_WORDS: tuple[tuple[str, bytes, int], ...] = (
    ("vllm", b"vLLM", 0),
    ("sglang", b"SGLang", 0),
    ("vllm", b"/vllm/", 1),
    ("sglang", b"/sglang/", 1),
    ("sglang", b"ServerArgs(", 1),
)
_BACKEND = re.compile(r"(?:Using |backend[\\'\"]*\s*[:=]\s*[\\'\"]*|backend )([A-Za-z0-9_]{3,40})")
_BACKEND_NEEDLES = (b"_backend", b"-backend", b" backend")
_MODEL = re.compile(
    r"[\\'\"]?(?:model_tag|model_path|model)[\\'\"]{0,2}\s*[:=]\s*[\\'\"]([^'\"\\\s]{1,200})[\\'\"]"
)
_MODEL_NEEDLES = (b"model_tag", b"model_path", b"'model'", b"model='")
_COMMAND_NEEDLES = (
    b"vllm serve",
    b"sglang serve",
    b"-m sglang.launch_server",
    b"-m vllm.entrypoints",
)
_UTILIZATION_NEEDLES = (b"gpu_memory_utilization", b"gpu-memory-utilization")
_SPOKEN_HEADS = re.compile(r"(?<![\w.])(\d{1,4}) (?:q |query |attention )?heads\b")
#: `24/4, D=256` or `64 q / 8 kv heads, D=128`, as people write a model's attention down.
_SPOKEN_DIMS = re.compile(
    r"(?<![\w./])(\d{1,4}) ?q? ?/ ?(\d{1,4}) ?(?:kv)?(?: heads)?, ?D=(\d{2,4})\b"
)
_SHORT_VALUE = re.compile(r"(?<![\w/.-])-{0,2}(dcp|pcp|dp|tp)(?:=| )(\d{1,5})\b")
#: Switches that change what a size means.
_SWITCHES: tuple[tuple[str, bytes, re.Pattern[str]], ...] = (
    (
        "deterministic",
        b"deterministic",
        re.compile(
            r"enable[-_]deterministic[-_]inference(?:=True|[\\'\"]+\s*:\s*[Tt]rue|(?![\w=]))"
        ),
    ),
    ("dp_attention", b"dp", re.compile(r"enable[-_]dp[-_]attention(?:=True|(?![\w=]))")),
)


class Hint(NamedTuple):
    """One thing told: `field` and value, and how sure its wording is (a higher one wins)."""

    field: str
    value: Any
    weight: int = 1


Reader = Callable[[str, int], list[Hint]]
#: Characters before and behind a needle that its reader looks at.
BEFORE, BEHIND = 64, 2048


def _number(name: str) -> Reader:
    def read(text: str, at: int) -> list[Hint]:
        before = text[at - 1] if at else " "
        match = _VALUE.match(text, at + len(name))
        if match is None or before.isalnum() or before == "_":
            return []
        value = int(match[1].replace(",", "")) * (1000 if match[2] else 1)
        hints = [Hint(_FIELD_OF[name], value, 2)] if value else []
        if hints and name in _ENGINE_NAMES:
            hints.append(Hint("engine", _ENGINE_NAMES[name]))
        return hints

    return read


def _version(engine: str) -> Callable[[re.Match[str]], list[Hint]]:
    def make(match: re.Match[str]) -> list[Hint]:
        hints = [Hint(f"{engine}_version", match[1].rstrip(".,"))]
        return hints if engine == "flashinfer" else [*hints, Hint("engine", engine, 2)]

    return make


def _utilization(text: str, at: int) -> list[Hint]:
    match = _FRACTION.match(text, at + len("gpu_memory_utilization"))
    return [Hint("utilization", float(match[1]))] if match else []


def _command(text: str, at: int) -> list[Hint]:
    """Flags of a launch command that the log shows, its continued lines included."""
    lines = text[at:].split("\n")
    words = ""
    for line in lines:
        words += line.rstrip("\r\\ ") + " "
        if not line.rstrip("\r ").endswith("\\"):
            break
    try:
        command = parse_command(shlex.split(words.split(" && ")[0], comments=True))
        specific = {"vllm": vllm_command, "sglang": sglang_command}[command.engine]
        read = read_flags(command.words, specific.FLAGS, known_flags(command.engine))
    except (InputError, ValueError):
        return []
    hints = [Hint("engine", command.engine, 3)]
    model = read.values.get("model") or next(iter(read.positional), None)
    if isinstance(model, str):
        hints.append(Hint("model", model))
    if any(word.startswith("-") for word in command.words):
        hints.append(Hint("complete", True))
    speculative = read.values.get("speculative_config") or {}
    drafted = speculative.get("num_speculative_tokens", read.values.get("drafted"))
    if type(drafted) is int and 0 < drafted < 1 << 16:
        hints.append(Hint("draft_tokens", drafted, 2))
    return hints


def _always(hint: Hint) -> Callable[[re.Match[str]], list[Hint]]:
    return lambda _match: [hint]


def _told(hint: Hint) -> Reader:
    return lambda _text, _at: [hint]


def _spoken_dims(match: re.Match[str]) -> list[Hint]:
    fields = ("heads", "kv_heads", "head_dim")
    return [Hint(field, int(text)) for field, text in zip(fields, match.groups(), strict=True)]


def _gpu(text: str, at: int) -> list[Hint]:
    name = devices.gpu_in(text[max(0, at - 16) : at + 24])
    return [Hint("gpu", name)] if name else []


def _number_readers() -> Iterator[tuple[bytes, Reader]]:
    """Readers of fields with a number behind their name."""
    for name in _FIELD_OF:
        yield name.encode(), _number(name)
    short = _pattern_at(_SHORT_VALUE, lambda match: [Hint(match[1], int(match[2]))], back=2)
    yield from ((f"{name}{mark}".encode(), short) for name in _SHORT for mark in "= ")
    heads = _pattern_at(_SPOKEN_HEADS, lambda match: [Hint("heads", int(match[1]))], back=20)
    yield b" heads", heads
    yield b"D=", _pattern_at(_SPOKEN_DIMS, _spoken_dims, back=32)
    yield from ((needle, _utilization) for needle in _UTILIZATION_NEEDLES)


def _word_readers() -> Iterator[tuple[bytes, Reader]]:
    """Readers of names: engines and versions, GPU, backends, models, switches."""
    for engine, needle, pattern in _VERSIONS:
        yield needle, _pattern_at(pattern, _version(engine), back=16)
    for engine, needle, weight in _ENGINE_WORDS:
        yield needle, _told(Hint("engine", engine, weight))
    yield from ((needle, _told(Hint("complete", True))) for needle in _COMPLETE)
    yield from ((needle, _gpu) for needle in devices.NEEDLES)
    backend = _pattern_at(_BACKEND, lambda match: [Hint("backend", match[1].upper())], back=48)
    yield from ((needle, backend) for needle in _BACKEND_NEEDLES)
    model = _pattern_at(_MODEL, lambda match: [Hint("model", match[1])], back=2)
    yield from ((needle, model) for needle in _MODEL_NEEDLES)
    yield from ((needle, _command) for needle in _COMMAND_NEEDLES)
    for field, needle, pattern in _SWITCHES:
        yield needle, _pattern_at(pattern, _always(Hint(field, True)), back=8)


def _readers() -> dict[bytes, list[Reader]]:
    readers: dict[bytes, list[Reader]] = {}
    for needle, reader in (*_number_readers(), *_word_readers()):
        readers.setdefault(needle, []).append(reader)
    return readers


def _pattern_at(
    pattern: re.Pattern[str], make: Callable[[re.Match[str]], list[Hint]], back: int = 6
) -> Reader:
    """A reader that looks for a pattern from a little before the needle on."""

    def read(text: str, at: int) -> list[Hint]:
        match = pattern.search(text, max(0, at - back), at + 200)
        return make(match) if match else []

    return read


READERS: dict[bytes, list[Reader]] = _readers()
#: How many of each word are looked at in one stretch of a log: a word of every traceback line tells
#: nothing new after the first.
NEEDLES: dict[bytes, int] = {
    **dict.fromkeys(READERS, 500),
    **{needle: 1 for _, needle, weight in _ENGINE_WORDS if weight},
}
#: Bytes of the longest of these words.
LONGEST = max(map(len, NEEDLES))


def hints_at(text: str, at: int, needle: bytes) -> list[Hint]:
    """What a text tells where a needle stands at `at`."""
    return [hint for reader in READERS[needle] for hint in reader(text, at)]
