"""A vLLM worker from the moment it is made: its slot, its sizing, its planned margins."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from ws_guard.foreign import Device, Foreign
from ws_guard.probe import Probe

from . import vllm_facts as facts
from .gpu import Gpu, free_and_total_bytes, gpu_of
from .hooks import Hooks
from .judge import Judged
from .live import holder_bytes, judge_live, planned_document, site_at
from .vllm_sites import SITES
from .vllm_sizing import HOLDER, Memory, Step, foreseen_bytes, size_workspace, sizes_itself

SPARSE_MODULE = "vllm.v1.attention.backends.mla.flashinfer_mla_sparse"


class VllmWorker:
    """What is known of the worker of this process. `worker` is vLLM's object, where there is one.

    None of its functions is guarded: they run as hooks, or in one.
    """

    def __init__(self, probe: Probe, config: Foreign, worker: Foreign) -> None:
        self.pid = os.getpid()
        self._probe = probe
        self._config = config
        self._worker = worker
        self._layers_loaded = False
        self._gpu = Gpu("", None, None)
        #: Bytes of the KV cache that vLLM is about to allocate; None before it has decided.
        self._kv_bytes: int | None = None
        #: Whether the sparse workspace has the size that it keeps.
        self._settled = False
        self._complained = False
        self._judged: list[Judged] = []

    def attach(self, rank: int) -> None:
        """Open the slot, with what the configuration tells."""
        self._probe.attach(**facts.identity(self._config, rank))
        self._probe.name_sites(self.site_of)
        self.publish()

    def watch(self, hooks: Hooks) -> None:
        """Follow the worker through its start-up. Its functions are hooked on the object alone."""
        worker = self._worker
        hooks.around(worker, "init_device", after=self._device_ready)
        hooks.around(worker, "load_model", after=self._model_loaded)
        hooks.around(
            worker, "initialize_from_config", before=self._kv_decided, after=self._kv_allocated
        )
        hooks.around(worker, "compile_or_warm_up_model", after=self._warmed_up)

    def _device_ready(self, *_: object, **__: object) -> None:
        self._gpu = gpu_of(self._worker.device)
        self._probe.describe(info={"device": self._gpu.name})
        self.publish()

    def _model_loaded(self, *_: object, **__: object) -> None:
        self._layers_loaded = True
        self.publish()

    def _kv_decided(self, kv_cache_config: Foreign, *_: object, **__: object) -> None:
        self._kv_bytes = sum(tensor.size for tensor in kv_cache_config.kv_cache_tensors)

    def _kv_allocated(self, *_: object, **__: object) -> None:
        self._kv_bytes = 0
        self.publish()

    def _warmed_up(self, *_: object, **__: object) -> None:
        self._settled = True
        self.publish()

    # -- sizing -----------------------------------------------------------------------------------

    def size_sparse_workspace(self, module: ModuleType, device: Device, dcp: int) -> None:
        """Size the sparse MLA workspace where vLLM does not; check that it did where it does."""
        step, mode = self._step(dcp), self._probe.settings.sizing
        complaint = ""
        if sizes_itself(module):
            complaint = self._judge_own_sizing(module, step)
        elif mode == "auto" and gpu_of(device).has_kernels:
            sleeps = bool(getattr(self._config.model_config, "enable_sleep_mode", False))
            complaint = size_workspace(module, device, step, self._memory(device), sleeps=sleeps)
        if complaint and not self._complained:
            # A worker makes several builders; free memory differs a little each time.
            self._complained = True
            self._probe.report(complaint)
        self._settled = True
        self.publish()

    def _judge_own_sizing(self, module: ModuleType, step: Step) -> str:
        size = holder_bytes(getattr(module, HOLDER, None)) or 0
        wanted = step.workspace_bytes
        if step.dcp <= 1 or facts.explicit_workspace_bytes() is not None or size >= wanted:
            return ""
        return f"vLLM sized its sparse MLA workspace to {size:,} bytes, {wanted:,} were expected"

    def _step(self, dcp: int) -> Step:
        tokens = self._config.scheduler_config.max_num_batched_tokens
        return Step(facts.heads_per_rank(self._config), dcp, tokens)

    def _memory(self, device: Device) -> Memory | None:
        found = free_and_total_bytes(device)
        if found is None:
            return None
        free, total = found
        return Memory(free, total, self._spoken_for(free))

    def _spoken_for(self, free: int) -> int:
        """What vLLM will still take: the KV cache, or before it is decided all that it may take."""
        if self._kv_bytes is not None:
            return self._kv_bytes
        requested = getattr(self._worker, "requested_memory", None)
        snapshot = getattr(self._worker, "init_snapshot", None)
        if requested is None or snapshot is None:
            return 0
        return max(0, int(requested) - int(snapshot.free_memory - free))

    # -- planned margins and names ----------------------------------------------------------------

    def publish(self) -> None:
        """Put the planned margins of all sites on the board, as well as they are known by now."""
        self._probe.describe(planned=self._planned())

    def _planned(self) -> list[dict[str, Any]] | None:
        layout = self._probe.layout
        if layout is None:
            # Without FlashInfer nothing is carved; what is not understood may carve anything.
            return [] if self._probe.verdict == "not_installed" else None
        if not self._gpu.has_kernels:
            self._judged = []
            return []
        launch = facts.launch_of(
            self._config, layers_loaded=self._layers_loaded, sm_count=self._gpu.sm_count
        )
        self._judged = judge_live(launch, layout, self._sizes())
        return planned_document(launch, layout, self._judged)

    def _sizes(self) -> dict[str, int]:
        """Bytes of the buffers by holder: as they are, or as the sparse one is going to be."""
        held = {site.holder: holder_bytes(_held(site.source, site.holder)) for site in SITES}
        sizes = {name: size for name, size in held.items() if size is not None}
        if HOLDER not in sizes and not self._settled:
            module = sys.modules.get(SPARSE_MODULE)
            itself = module is None or sizes_itself(module)
            step = self._step(self._config.parallel_config.decode_context_parallel_size)
            sizes[HOLDER] = foreseen_bytes(step, self._probe.settings.sizing, itself)
        return sizes

    def site_of(self, address: int, op: str) -> str:
        """The site whose buffer has this address; "" where no live site's has."""
        return site_at(self._judged, op, address, lambda site: _held(site.source, site.holder))


def _held(source: str, name: str) -> object:
    """What vLLM keeps under a holder's name: a tensor, several, or the function that gives one."""
    module = sys.modules.get("vllm." + source.removesuffix(".py").replace("/", "."))
    return getattr(module, name, None)
