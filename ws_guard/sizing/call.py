"""What decides a carve: the arguments of one native call."""

from __future__ import annotations

from typing import NamedTuple

from .errors import INT32_MAX, InputError, whole
from .layouts import ENTRY_OF_OP, Entry

#: No GPU of the Blackwell family comes near it; a bigger number is a typing error.
MAX_SM_COUNT = 1024


class HeadDims(NamedTuple):
    """Elements per head of query and output; `top_k` selected tokens (0: not sparse MLA)."""

    qk: int
    vo: int
    top_k: int = 0


class Call(NamedTuple):
    """One native call, in the words of the design: heads, batch, q_len (tokens), LSE.

    `sum_q` (query tokens of the whole batch) matters to layout A's ragged entry and to XQA, `dims`
    only to scratch. `counter_buffer_bytes` is the size of the external counter, None where the call
    brings one that is large enough, as FlashInfer's own Python does.

    The last three matter to XQA alone; None where they are not known. `max_kv_len` is the tokens
    that a row of the page table has room for, `sm90_fp8` whether the FP8 kernel of Hopper runs.
    """

    entry: Entry
    heads: int
    batch: int
    q_len: int = 1
    lse: bool = False
    sm_count: int = 148
    sum_q: int | None = None
    counter_buffer_bytes: int | None = None
    dims: HeadDims | None = None
    kv_heads: int | None = None
    max_kv_len: int | None = None
    sm90_fp8: bool | None = None

    def checked(self) -> Call:
        """The call itself, or an `InputError` that names what no call can have."""
        known = tuple(ENTRY_OF_OP.values())
        if self.entry not in known:
            raise InputError(f"entry must be one of {', '.join(known)}, got {self.entry!r}")
        whole("num_qo_heads", self.heads, least=1, most=INT32_MAX)
        whole("batch_size", self.batch, least=1, most=INT32_MAX)
        whole("max_q_len", self.q_len, least=1, most=INT32_MAX)
        whole("sm_count", self.sm_count, least=1, most=MAX_SM_COUNT)
        if self.sum_q is not None:
            whole("sum_q", self.sum_q, least=0, most=INT32_MAX)
        if self.kv_heads is not None:
            whole("num_kv_heads", self.kv_heads, least=1, most=self.heads)
        if self.max_kv_len is not None:
            whole("max_kv_len", self.max_kv_len, least=0, most=INT32_MAX)
        if self.counter_buffer_bytes is not None:
            whole("counter_buffer_bytes", self.counter_buffer_bytes, least=0)
        if 8 * self.heads * self.batch * (self.q_len + 255) >= 1 << 63:
            raise InputError(
                f"num_qo_heads {self.heads:,} x batch_size {self.batch:,} x max_q_len "
                f"{self.q_len:,} is more than any address space holds; pass real sizes"
            )
        return self
