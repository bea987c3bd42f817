"""Paints XQA's scratch, calls the real kernels, and compares what they wrote with the formula.

Needs a card that XQA runs on, torch and FlashInfer; run it as a program, or by the test beside it:

    PYTHONPATH=. python tests/gpu/xqa_painting.py [--empty-scratch]

`--empty-scratch` also calls, in a process of its own, with a workspace of the semaphores alone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import card

from ws_guard.sizing import LAYOUTS, XQA_SEMAPHORE_BYTES, Call, HeadDims, Scratch, scratch

MIB = 1 << 20
SCRATCH_BYTES = 32 * MIB
# Two paints: a byte that the kernel leaves as it was painted once is seen the other time.
PAINTS = (0xA5, 0x5A)
# XQA reads pages where the table says: a few serve all sequences.
POOL_PAGES = 256


class Module(NamedTuple):
    """What one JIT module of XQA is compiled for."""

    head_dim: int
    group: int
    page: int
    fp8: bool = False
    q_len: int = 1


class Case(NamedTuple):
    """A call: `used` of the `pages` that each row of the page table has room for."""

    module: Module
    kv_heads: int
    batch: int
    pages: int
    used: int | None = None

    @property
    def capacity(self) -> int:
        """`max_kv_len` of the call, in tokens."""
        return self.pages * self.module.page

    def call(self, sm_count: int, sm90: bool) -> Call:
        """The call in the words of the formula."""
        module = self.module
        return Call(
            "xqa",
            module.group * self.kv_heads,
            self.batch,
            module.q_len,
            sm_count=sm_count,
            dims=HeadDims(module.head_dim, module.head_dim),
            kv_heads=self.kv_heads,
            max_kv_len=self.capacity,
            sm90_fp8=module.fp8 and sm90,
        )


PLAIN = Module(128, 8, 64)
NARROW = Module(64, 4, 16)
WIDE = Module(256, 2, 32)
PADDED = Module(96, 5, 64)
MANY_ROWS = Module(128, 64, 64)
DRAFT = Module(128, 8, 64, q_len=5)
FP8 = Module(128, 8, 64, fp8=True)
FP8_PADDED = Module(96, 5, 64, fp8=True)
# Two tiles of 8 tokens; a tile that is not full would not write its last rows.
FP8_DRAFT = Module(128, 8, 64, fp8=True, q_len=16)

CASES = (
    Case(PLAIN, 8, 1, 513),  # 294,912 and 165,888 were measured on an H200 before
    Case(PLAIN, 8, 1, 33),
    Case(PLAIN, 8, 1, 513, used=1),  # who reads nothing writes all the same
    Case(PLAIN, 8, 1, 4),  # one tile of 256 tokens
    Case(PLAIN, 8, 1, 5),
    Case(PLAIN, 8, 4, 513),
    Case(PLAIN, 8, 8, 129),
    Case(PLAIN, 8, 16, 129),  # 128 of 132 SMs are busy: no split
    Case(PLAIN, 1, 1, 513),
    Case(PLAIN, 1, 66, 129),  # the last batch that splits on 132 SMs
    Case(PLAIN, 1, 67, 129),
    Case(NARROW, 2, 3, 600),
    Case(WIDE, 4, 2, 300),
    Case(PADDED, 8, 1, 513),
    Case(MANY_ROWS, 1, 1, 513),
    Case(DRAFT, 8, 1, 513),
    Case(DRAFT, 2, 5, 100),
    Case(FP8, 8, 1, 513),
    Case(FP8, 8, 1, 5),
    Case(FP8, 8, 1, 513, used=3),
    Case(FP8, 1, 66, 129),
    Case(FP8, 1, 67, 129),
    Case(FP8_PADDED, 8, 1, 513),
    Case(FP8_DRAFT, 8, 1, 513),
    Case(FP8_DRAFT, 8, 3, 513),
)


class Result(NamedTuple):
    """What a case wrote (bytes up to the last one changed), or the error that it met."""

    case: Case
    expected: Scratch
    measured: int | None
    error: str = ""

    @property
    def verdict(self) -> str:
        """`equal`, `within` an upper bound, or what is wrong."""
        if self.measured is None:
            return f"ERROR {self.error}"
        if self.measured == self.expected.bytes:
            return "equal"
        if self.measured < self.expected.bytes and not self.expected.exact:
            return "within"
        return "WRONG"


def compile_modules(modules: set[Module]) -> None:
    """Compile side by side; what fails here fails again, and is told, where it is called."""
    import torch
    from flashinfer.xqa import get_xqa_module

    def load(module: Module) -> None:
        kv = torch.float8_e4m3fn if module.fp8 else torch.bfloat16
        bf16 = torch.bfloat16
        started = time.monotonic()
        try:
            get_xqa_module(
                bf16, kv, module.page, module.head_dim, module.group, False, bf16, module.q_len
            )
        except Exception as error:  # noqa: BLE001 - the table goes on without it
            print(f"{module}: {_line(error)}", flush=True)
        print(f"compiled {module} in {time.monotonic() - started:.0f} s", flush=True)

    with ThreadPoolExecutor(len(modules)) as pool:
        list(pool.map(load, sorted(modules)))


def decode(case: Case, workspace: object) -> None:
    """One call by FlashInfer's own Python, which slices the workspace."""
    import torch
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    module, device = case.module, "cuda"
    heads, tokens = module.group * case.kv_heads, case.batch * module.q_len
    query = torch.randn(tokens, heads, module.head_dim, device=device, dtype=torch.bfloat16)
    shape = (POOL_PAGES, case.kv_heads, module.page, module.head_dim)
    cache = torch.randn(shape, device=device, dtype=torch.bfloat16)
    if module.fp8:
        cache = cache.to(torch.float8_e4m3fn)
    entries = torch.arange(case.batch * case.pages, device=device, dtype=torch.int32) % POOL_PAGES
    used = (case.used or case.pages) * module.page
    mask = None
    if module.q_len > 1:
        # One word of 32 bits per draft token: those up to itself.
        words = [(2 << token) - 1 for token in range(module.q_len)]
        rows = torch.tensor(words, device=device, dtype=torch.int32)
        mask = rows.view(1, -1, 1).repeat(case.batch, 1, 1).view(torch.uint16)
    xqa_batch_decode_with_kv_cache(
        query,
        (cache, cache),
        workspace,
        entries.view(case.batch, case.pages),
        torch.full((case.batch,), used, device=device, dtype=torch.int32),
        case.capacity,
        bmm1_scale=module.head_dim**-0.5,
        bmm2_scale=1.0,
        kv_layout="HND",
        q_len_per_req=module.q_len,
        mask=mask,
    )
    torch.cuda.synchronize()


def written(case: Case) -> int:
    """Bytes of scratch up to the last one that the call changed."""
    import torch

    last = 0
    for paint in PAINTS:
        workspace = torch.zeros(
            XQA_SEMAPHORE_BYTES + SCRATCH_BYTES, device="cuda", dtype=torch.uint8
        )
        painted = workspace[XQA_SEMAPHORE_BYTES:]
        painted.fill_(paint)
        decode(case, workspace)
        changed = (painted != paint).nonzero()
        if changed.numel():
            last = max(last, int(changed[-1]) + 1)
        if workspace[:XQA_SEMAPHORE_BYTES].any():
            raise RuntimeError("the semaphores are not zero after the call")
    return last


def measure(case: Case) -> Result:
    """A case's formula beside its measurement."""
    import torch

    card = torch.cuda.get_device_properties(0)
    call = case.call(card.multi_processor_count, card.major == 9)
    expected = scratch(call, LAYOUTS["C"])
    try:
        return Result(case, expected, written(case))
    except Exception as error:  # noqa: BLE001 - one try: the other rows still count
        return Result(case, expected, None, _line(error))


def measure_all() -> list[Result]:
    """Every case, told as a table while it goes."""
    import flashinfer
    import torch

    card = torch.cuda.get_device_properties(0)
    print(
        f"{card.name}, {card.multi_processor_count} SMs, torch {torch.__version__}, "
        f"FlashInfer {flashinfer.__version__}",
        flush=True,
    )
    compile_modules({case.module for case in CASES})
    print(
        f"{'kv':4} {'q':>2} {'dim':>3} {'heads':>7} {'page':>4} {'batch':>5} {'tokens':>6} "
        f"{'of room':>7} {'measured':>10} {'formula':>10} exact verdict"
    )
    results = []
    for case in CASES:
        result = measure(case)
        results.append(result)
        module = case.module
        heads = f"{module.group * case.kv_heads}/{case.kv_heads}"
        measured = "-" if result.measured is None else f"{result.measured:,}"
        print(
            f"{'fp8' if module.fp8 else 'bf16':4} {module.q_len:2} {module.head_dim:3} {heads:>7} "
            f"{module.page:4} {case.batch:5} {(case.used or case.pages) * module.page:6} "
            f"{case.capacity:7} {measured:>10} {result.expected.bytes:10,} "
            f"{result.expected.exact!s:5} {result.verdict}",
            flush=True,
        )
    return results


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[-1][:200]}"


def _empty_scratch() -> None:
    import torch

    workspace = torch.zeros(XQA_SEMAPHORE_BYTES, device="cuda", dtype=torch.uint8)
    print(f"the empty slice's address is {workspace[XQA_SEMAPHORE_BYTES:].data_ptr():#x}")
    try:
        decode(CASES[0], workspace)
        print("a workspace of 8 MiB: no error")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        print(f"a workspace of 8 MiB: {_line(error)}")


def main() -> int:
    """0 where every case agrees with the formula."""
    card.require()
    if sys.argv[1:] == ["--only-empty-scratch"]:
        _empty_scratch()
        return 0
    results = measure_all()
    bad = [result for result in results if result.verdict not in ("equal", "within")]
    print(f"{len(results)} cases, {len(bad)} not as the formula says", flush=True)
    if "--empty-scratch" in sys.argv[1:]:
        subprocess.run([sys.executable, __file__, "--only-empty-scratch"], check=False)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
