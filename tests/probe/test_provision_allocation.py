"""What a provision is made of: the planned size, zeroed, and a guard zone behind it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import flashinfer_needed  # noqa: F401 - skips this file without it
import pytest
import torch

import ws_guard
from ws_guard import InputError
from ws_guard.probe.provisions import allocate

if TYPE_CHECKING:
    from ws_guard import Plan

MIB = 1 << 20


def test_the_planned_size_zeroed_with_a_zone_behind(plan: Plan) -> None:
    # 394 MiB + 8 bytes x 64 heads x 16,384 rows x 256 + 1 MiB; lazily mapped, as nobody writes it.
    assert allocate(plan, "meta", None, MIB).bytes == 413_138_944 + 2_148_532_224 == 2_561_671_168
    made = allocate(plan, "cpu", 12_345, 100)
    assert made.bytes == 12_345
    assert not made.workspace.any()
    # The zone begins with the first whole word behind, and is whole lines of 2,048 bytes.
    behind = torch.tensor([], dtype=torch.uint8).set_(made.workspace.untyped_storage())[12_345:]
    assert behind.numel() == 7 + 2048
    made.zone.look()
    assert made.zone.answer() == (1, 0)
    behind[:7] = 1
    made.zone.look()
    assert made.zone.answer() == (2, 0)
    behind[7] = 1
    made.zone.look()
    assert made.zone.answer() == (3, 8)


def test_a_plan_that_fits_is_taken_as_it_is() -> None:
    fits = ws_guard.plan(heads=64, max_num_batched_tokens=64, workspace_bytes=32 * MIB)
    assert fits.fits
    assert allocate(fits, "cpu", None, 1).bytes == 32 * MIB


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"plan": None}, "plan is what ws_guard.plan() gave, got NoneType"),
        ({"plan": {"fits": True}}, "plan is what ws_guard.plan() gave, got dict"),
        ({"device": "nonsense"}, "device is what torch.device takes, got 'nonsense'"),
        ({"device": object()}, "device is what torch.device takes, got <object"),
        ({"workspace_bytes": 0}, "workspace_bytes"),
        ({"workspace_bytes": -1}, "workspace_bytes"),
        ({"workspace_bytes": 1.5}, "workspace_bytes"),
        ({"workspace_bytes": True}, "workspace_bytes"),
        ({"zone_bytes": 0}, "zone_bytes"),
        ({"zone_bytes": "1MiB"}, "zone_bytes"),
    ],
)
def test_arguments_that_cannot_be(plan: Plan, arguments: dict[str, Any], words: str) -> None:
    given = {"plan": plan, "device": "cpu", "workspace_bytes": 64, "zone_bytes": 64} | arguments
    with pytest.raises(InputError) as raised:
        allocate(**given)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_without_torch_there_is_nothing_to_allocate(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(InputError, match="import it first"):
        allocate(plan, "cpu", 64, 64)
