"""The GPU of a worker, asked once, after the engine has made it its own."""

from __future__ import annotations

from typing import Any, NamedTuple

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


def gpu_of(device: Any) -> Gpu:  # noqa: ANN401 - a torch.device or its name
    """The GPU behind a device of torch's."""
    import torch

    device = torch.device(device)
    if device.type != "cuda" or not torch.cuda.is_available():
        return Gpu(str(device), None, None)
    properties = torch.cuda.get_device_properties(device)
    return Gpu(properties.name, properties.multi_processor_count, properties.major)
