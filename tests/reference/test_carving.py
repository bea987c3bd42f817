"""The stand-in for the native module: what it carves and what it refuses.

Expected sizes are worked out beside the assertions.
"""

from __future__ import annotations

import importlib.util

import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("flashinfer") is None:
    pytest.skip("flashinfer is not installed", allow_module_level=True)

from ws_guard import reference  # noqa: E402 - after the skips
from ws_guard.sizing import LAYOUTS, InputError  # noqa: E402 - after the skips

from .native_steps import (  # noqa: E402 - after the skips
    CONTEXT,
    DECODE,
    DSV4,
    EXACT_74,
    INSTALLED,
    RAGGED,
    REFUSED_3081,
    call,
    sized,
)


def test_a_refusal_speaks_flashinfers_words() -> None:
    """64 heads, LSE, 394 MiB: 3,080 rows fit to the byte, one more is refused."""
    # Left behind the counter: 413,138,944 - 8,388,608 = 404,750,336.
    # 3,080 rows: 8 * 64 * 3,080 * 256 + 1,048,576 = 404,750,336.
    call("B", DECODE, sized(3080))
    with pytest.raises(RuntimeError) as refused:
        call("B", DECODE, sized(3081))
    assert str(refused.value) == REFUSED_3081


def test_the_reported_crash() -> None:
    """A step of 12,288 tokens at 64 heads asks 8 * 64 * 12,288 * 256 + 1,048,576 bytes."""
    with pytest.raises(RuntimeError, match=r"size 1611661312 .* but only 404750336 bytes"):
        call("B", DECODE, sized(12_288))


def test_layout_c_has_the_counter_outside() -> None:
    """3,144 rows fill 413,138,944 bytes exactly; the line number tells the layout."""
    call("C", DECODE, sized(3144))
    with pytest.raises(RuntimeError) as refused:
        call("C", DECODE, sized(3145))
    # 8 * 64 * 3,145 * 256 + 1,048,576.
    assert "allocator.h:71: " in str(refused.value)
    assert "with size 413270016 and alignment 16, but only 413138944 " in str(refused.value)


def test_layout_a_carves_no_stats_in_decode() -> None:
    call("A", DECODE, sized(65_535))


def test_one_byte_short() -> None:
    call("B", DECODE, sized(74, workspace_bytes=EXACT_74))
    with pytest.raises(RuntimeError, match=r"size 10747904 .* but only 10747903 bytes"):
        call("B", DECODE, sized(74, workspace_bytes=EXACT_74 - 1))


def test_the_address_costs_padding() -> None:
    """One byte behind an aligned address, std::align skips 15 bytes before the counter."""
    room = torch.empty(EXACT_74 + 32, dtype=torch.uint8)
    aligned = -room.data_ptr() % 16
    for size, available in ((EXACT_74 + 15, None), (EXACT_74 + 14, 10_747_903)):
        step = sized(74) | {
            "workspace_buffer": room[aligned + 1 :][:size],
            "workspace_size": size,
        }
        if available is None:
            call("B", DECODE, step)
        else:
            with pytest.raises(RuntimeError, match=f"but only {available} bytes available"):
                call("B", DECODE, step)


def test_a_short_external_counter() -> None:
    """C checks 4 * round_up(max(batch * heads, SMs), 8) bytes: 4 * 74 * 64 = 18,944 here."""
    # int32 elements: the size is in bytes whatever the type.
    enough = torch.empty(18_944 // 4, dtype=torch.int32)
    call("C", DECODE, sized(74) | {"multi_ctas_kv_counter_buffer": enough})
    with pytest.raises(RuntimeError) as refused:
        call("C", DECODE, sized(74) | {"multi_ctas_kv_counter_buffer": enough[:-1]})
    assert str(refused.value) == (
        "Check failed: (static_cast<size_t>(multi_ctas_kv_counter_size) >= counter_bytes) "
        "is false: "
    )


@pytest.mark.parametrize("op", [CONTEXT, RAGGED, DSV4])
def test_other_ops_carve_and_give_zeros(op: str) -> None:
    """2 heads, 5 rows of up to 300 tokens."""
    values = {
        "out": torch.ones(7, 2, 512),
        "query": torch.ones(7, 2, 512),
        "workspace_buffer": torch.empty(0, dtype=torch.uint8),
        "batch_size": 5,
        "max_q_len": 300,
        "sm_count": 148,
        "workspace_size": 16 << 20,
    }
    if op != DSV4:
        values["lse"] = torch.ones(7, 2)
    call("B", op, values)
    assert not values["out"].any()
    # 8 * 2 * 5 * round_up(300, 256) + 1,048,576 = 1,089,536, beside the counter where there is one.
    least = {CONTEXT: 1_089_536, RAGGED: 8_388_608 + 1_089_536, DSV4: 8_388_608}[op]
    call("B", op, values | {"workspace_size": least + 15})
    with pytest.raises(RuntimeError, match="Buffer overflow when allocating memory for trtllm_gen"):
        call("B", op, values | {"workspace_size": least - 1})


def test_ragged_of_layout_a_counts_query_tokens() -> None:
    """A carves 8 * heads * tokens, LSE or not: 8 * 2 * 7 = 112 bytes behind the counter."""
    values = {
        "out": torch.ones(7, 2, 128),
        "query": torch.ones(7, 2, 128),
        "workspace_buffer": torch.empty(0, dtype=torch.uint8, device="meta"),
        "batch_size": 5,
        "max_q_len": 300,
        "sm_count": 148,
    }
    call("A", RAGGED, values | {"workspace_size": 8_388_608 + 112})
    with pytest.raises(RuntimeError, match="size 112 and alignment 16, but only 111 bytes"):
        call("A", RAGGED, values | {"workspace_size": 8_388_608 + 111})


def test_a_wrong_number_of_arguments() -> None:
    module = reference.NativeModule("B", INSTALLED)
    with pytest.raises(TypeError, match=f"Expected {len(INSTALLED[DECODE])} but got 2 arguments"):
        module.trtllm_paged_attention_decode(1, 2)


def test_an_op_that_the_release_lacks_is_no_attribute() -> None:
    module = reference.NativeModule(LAYOUTS["A"], {DECODE: INSTALLED[DECODE]})
    assert hasattr(module, DECODE)
    assert not hasattr(module, DSV4)


def test_unknown_layouts_and_ops_are_named() -> None:
    with pytest.raises(InputError, match="layout must be one of A, B, C, got 'Z'"):
        reference.NativeModule("Z", INSTALLED)
    with pytest.raises(InputError, match="got 'xqa'"):
        reference.NativeModule("B", {"xqa": ["out"]})
