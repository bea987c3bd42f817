"""The GPU of a worker, asked at start-up, after the engine has made it its own.

The engine's torch is used, never imported: a worker has long loaded it.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from ws_guard.foreign import Device, Foreign, Tensor

#: Major compute capability for which trtllm-gen has kernels; on others nothing is carved.
_BLACKWELL = 10


class Gpu(NamedTuple):
    """What a plan depends on. Without a GPU `sm_count` and `major` are None."""

    name: str
    sm_count: int | None
    major: int | None

    @property
    def has_kernels(self) -> bool:
        """Whether trtllm-gen runs here; taken for granted where there is no GPU to ask."""
        return self.major in (None, _BLACKWELL)


def gpu_of(device: Device) -> Gpu:
    """The GPU behind a device of torch's."""
    torch = _torch()
    if not _is_gpu(device):
        return Gpu(str(device), None, None)
    properties = torch.cuda.get_device_properties(device)
    return Gpu(properties.name, properties.multi_processor_count, properties.major)


def free_and_total_bytes(device: Device) -> tuple[int, int] | None:
    """GPU memory of a device; None where it is no GPU."""
    if not _is_gpu(device):
        return None
    free, total = _torch().cuda.mem_get_info(device)
    return int(free), int(total)


def zeroed_bytes(size: int, device: Device) -> Tensor:
    """A zeroed int8 tensor, or None where the memory for it is not there."""
    torch = _torch()
    try:
        return torch.zeros(size, dtype=torch.int8, device=device)
    except torch.cuda.OutOfMemoryError:
        return None


def _is_gpu(device: Device) -> bool:
    torch = _torch()
    return bool(torch.device(device).type == "cuda" and torch.cuda.is_available())


def _torch() -> Foreign:
    return sys.modules["torch"]
