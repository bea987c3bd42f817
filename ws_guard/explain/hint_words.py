"""The words in which a log tells of the process that wrote it, as data: needles and patterns."""

from __future__ import annotations

import re

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
    ("scheduled", ("total_num_scheduled_tokens",)),
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
ENGINE_NAMES = {
    "max_num_batched_tokens": "vllm",
    "max-num-batched-tokens": "vllm",
    "max_num_seqs": "vllm",
    "max-num-seqs": "vllm",
    "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": "vllm",
    "total_num_scheduled_tokens": "vllm",
    "chunked_prefill_size": "sglang",
    "chunked-prefill-size": "sglang",
    "max_running_requests": "sglang",
    "max-running-requests": "sglang",
    "SGLANG_FLASHINFER_WORKSPACE_SIZE": "sglang",
}
FIELD_OF = {name: field for field, names in NAMES for name in names}
SHORT = ("tp", "dcp", "dp", "pcp")
#: Only in dumps that hold every flag that is not its default: what they lack has its default.
COMPLETE = (b"non-default args: {", b"ServerArgs(")

#: Starts of an engine, each with its flags near: searched for in a whole log, however large.
ANCHORS: tuple[bytes, ...] = (b"LLM engine (v", b"ServerArgs(")

VALUE = re.compile(
    r"[\\'\"]{0,4}\s{0,2}(?:[:=]\s{0,2}|\s)[\\'\"]{0,4}(\d{1,3}(?:,\d{3})+|\d{1,15})([kK]?)\b"
)
FRACTION = re.compile(r"[\\'\"]{0,4}\s{0,2}(?:[:=]\s{0,2}|\s)(0?\.\d{1,6})")
VERSION = r"v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?[\w.+]{0,60})"
SEPARATOR = r"(?:==|\s+version:?\s*|['\"]?\s*[:=]\s*['\"]?|\s+|-)"
VERSIONS: tuple[tuple[str, bytes, re.Pattern[str]], ...] = (
    ("vllm", b"LLM engine (v", re.compile(r"LLM engine \(v([^)\s]{1,80})\)")),
    ("vllm", b"vLLM", re.compile(rf"vLLM(?: API server)? [vV]ersion\s*:?\s*{VERSION}")),
    *(
        ("vllm", needle, re.compile(rf"vllm(?:==|-|-openai:|: |\s+){VERSION}"))
        for needle in (b"vllm==", b"vllm-0", b"vllm-1", b"vllm-openai:", b"vllm: ", b"vllm  ")
    ),
    *(
        ("sglang", needle, re.compile(rf"sglang(?:==|-|:\s*|\s+){VERSION}"))
        for needle in (b"sglang==", b"sglang-0", b"sglang:", b"sglang  ", b"sglang 0")
    ),
    ("flashinfer", b"lashinfer", re.compile(
        rf"lashinfer(?:[-_]python)?(?:_version)?{SEPARATOR}{VERSION}"
    )),
    ("flashinfer", b"lashInfer", re.compile(rf"lashInfer{SEPARATOR}{VERSION}")),
)  # fmt: skip
#: Words that name an engine, and how much each says: a name alone may be said in passing.
ENGINE_WORDS: tuple[tuple[str, bytes, int], ...] = (
    ("vllm", b"vLLM", 0),
    ("sglang", b"SGLang", 0),
    ("vllm", b"/vllm/", 1),
    ("sglang", b"/sglang/", 1),
    ("sglang", b"ServerArgs(", 1),
)
BACKEND = re.compile(r"(?:Using |backend[\\'\"]*\s*[:=]\s*[\\'\"]*|backend )([A-Za-z0-9_]{3,40})")
BACKEND_NEEDLES = (b"_backend", b"-backend", b" backend")
MODEL = re.compile(
    r"[\\'\"]?(?:model_tag|model_path|model)[\\'\"]{0,2}\s*[:=]\s*[\\'\"]([^'\"\\\s]{1,200})[\\'\"]"
)
MODEL_NEEDLES = (b"model_tag", b"model_path", b"'model'", b"model='")
COMMAND_NEEDLES = (
    b"vllm serve",
    b"sglang serve",
    b"-m sglang.launch_server",
    b"-m vllm.entrypoints",
)
UTILIZATION_NEEDLES = (b"gpu_memory_utilization", b"gpu-memory-utilization")
SPOKEN_HEADS = re.compile(r"(?<![\w.])(\d{1,4}) (?:q |query |attention )?heads\b")
#: `24/4, D=256` or `64 q / 8 kv heads, D=128`, as people write a model's attention down.
SPOKEN_DIMS = re.compile(
    r"(?<![\w./])(\d{1,4}) ?q? ?/ ?(\d{1,4}) ?(?:kv)?(?: heads)?, ?D=(\d{2,4})\b"
)
#: Variables that are set to a number, or that vLLM does not know: constants of code are none.
VARIABLE = re.compile(
    r"(?<=variable detected: )[A-Z][A-Z_]{15,60}"
    r"|(?<![\w-])[A-Z][A-Z_]{15,60}(?=[\\'\"]{0,2}(?:=|: ?)[\\'\"]{0,2}\d)"
)
VARIABLE_NEEDLES = (b"FLASHINFER_WOR", b"WORKSPACE_BUF", b"WORKSPACE_SIZE", b"BUFFER_SIZE")
SHORT_VALUE = re.compile(r"(?<![\w/.-])-{0,2}(dcp|pcp|dp|tp)(?:=| )(\d{1,5})\b")
#: Switches that change what a size means.
SWITCHES: tuple[tuple[str, bytes, re.Pattern[str]], ...] = (
    (
        "deterministic",
        b"deterministic",
        re.compile(
            r"enable[-_]deterministic[-_]inference(?:=True|[\\'\"]+\s*:\s*[Tt]rue|(?![\w=]))"
        ),
    ),
    ("dp_attention", b"dp", re.compile(r"enable[-_]dp[-_]attention(?:=True|(?![\w=]))")),
)
