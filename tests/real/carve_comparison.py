"""Our carve against the real launcher's, over random shapes and the edges between them.

Runs under any interpreter that has FlashInfer, without pytest: `python carve_comparison.py SEED`
prints its findings as JSON.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from native_ops import Answer, NativeOps

from ws_guard.launcher import build, installed_flashinfer_root
from ws_guard.sizing import Call, Entry, HeadDims, Layout, carve, layouts_of_release

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPES: dict[Entry, int] = {"decode": 180, "context": 150, "ragged": 150, "dsv4": 80}
MISALIGNMENTS = (0, 0, 1, 4, 8, 15)
VLLM_DEFAULT = 413_138_944
#: More than any GPU has: pointers are only moved, never followed.
HUGE = 1 << 46
#: dsv4 checks the sizes of tensors that have to be contiguous.
_DSV4_TOKENS = 1 << 16


class Findings(NamedTuple):
    """How much was compared, what the launcher answered, and every difference in words."""

    release: str
    layout: str
    shapes: dict[Entry, int]
    seen: dict[str, int]
    differences: list[str]


def compare(seed: int) -> Findings:
    """Compare every shape at every workspace size, for the FlashInfer of this interpreter."""
    import flashinfer

    root = installed_flashinfer_root()
    native = NativeOps(build(root), root / "data" / "csrc" / "trtllm_fmha_kernel_launcher.cu")
    release = flashinfer.__version__
    layout = layouts_of_release(release)[0]
    rng = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    seen: Counter[str] = Counter()
    differences: list[str] = []
    for entry in (entry for entry, count in SHAPES.items() for _ in range(count)):
        call, misaligned_by = _shape(rng, entry), rng.choice(MISALIGNMENTS)
        least = least_workspace(native, call, misaligned_by)
        for size in _sizes(rng, least):
            real = native.carve(call, size, misaligned_by)
            seen["comparisons"] += 1
            seen["refusals"] += not real.ok
            seen["counter_refusals"] += not real.ok and least is None
            seen["edges"] += not real.ok and least is not None and size == least - 1
            differences.append(difference(real, call, layout, size, native.address + misaligned_by))
    return Findings(release, layout.name, dict(SHAPES), dict(seen), [*filter(None, differences)])


def difference(real: Answer, call: Call, layout: Layout, size: int, address: int) -> str:
    """Empty where our carve says what the launcher said, else both in one line."""
    ours = carve(call, layout, size, address)
    refused = None if ours.refused is None else tuple(ours.refused)
    same = (ours.ok, ours.offsets, refused) == (real.ok, real.offsets, real.refused)
    # Only 0.7 tells the kernel what is left, and only where the kernel may use it.
    if same and real.scratch_bytes > 0:
        same = ours.scratch_available == real.scratch_bytes
    return "" if same else f"{call} in {size} at {address % 16} mod 16: {real} but {ours}"


def least_workspace(native: NativeOps, call: Call, misaligned_by: int) -> int | None:
    """The smallest workspace that the launcher itself accepts, found by asking it.

    Every refusal tells how much is missing but for the padding. None where no size is enough.
    """
    size = 0
    while True:
        refused = native.carve(call, size, misaligned_by).refused
        if refused is None:
            return size
        _, wanted, _, available = refused
        if wanted is None or available is None:
            return None
        size += max(wanted - available, 1)


def _sizes(rng: random.Random, least: int | None) -> Iterator[int]:
    yield from (0, VLLM_DEFAULT, HUGE)
    if least:
        yield from (least - 1, least, least + 1, rng.randrange(least))
        yield rng.randrange(least, 2 * least)


def _shape(rng: random.Random, entry: Entry) -> Call:
    heads = rng.choice([1, 2, 8, 16, 32, 64, 96, 128, rng.randint(1, 256)])
    q_len = rng.choice([1, 1, 2, 4, 255, 256, 257, rng.randint(1, 8192)])
    batch = rng.choice([1, rng.randint(1, 148), rng.randint(1, 1 << 16), 1 << rng.randint(0, 16)])
    if entry == "dsv4":
        batch = max(1, min(batch, _DSV4_TOKENS // q_len))
    sm_count = rng.choice([1, 132, 148, 152, 160])
    # Four bytes per row and head, at least one per SM, in units of eight.
    counter = 4 * -(-max(batch * heads, sm_count) // 8) * 8
    return Call(
        entry=entry,
        heads=heads,
        batch=batch,
        q_len=q_len,
        lse=entry != "dsv4" and rng.random() < 0.7,
        sm_count=sm_count,
        sum_q=rng.randint(batch, batch * q_len) if entry in ("context", "ragged") else None,
        counter_buffer_bytes=rng.choice([None, None, counter, counter - 1]),
        dims=HeadDims(qk=512, vo=512) if entry == "dsv4" else HeadDims(qk=128, vo=128),
    )


if __name__ == "__main__":
    print(json.dumps(compare(int(sys.argv[1]))._asdict()))
