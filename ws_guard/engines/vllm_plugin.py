"""The plugin that vLLM loads by itself (entry-point group `vllm.general_plugins`).

vLLM calls `plugin()` in every process: API server, engine core, each worker. Under fork a child
inherits what was put in place and is not called again. So nothing here says that a process is a
worker, only that a worker object is made in it: then the slot opens. That object's own milestones
tell the rest: its device, its layers, its workspaces.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from ws_guard.foreign import Foreign
from ws_guard.probe import Probe, stand_by
from ws_guard.probe.saying import say

from .hooks import Hooks
from .vllm_worker import SPARSE_MODULE, VllmWorker

WORKER_MODULE = "vllm.v1.worker.worker_base"
#: Who sizes the workspace: from 0.30.0 on the builder of the SM100 kernel, before the only one.
_BUILDERS = ("FlashInferMLASparseTRTLLMMetadataBuilder", "FlashInferMLASparseMetadataBuilder")

_plugin: VllmPlugin | None = None


def plugin() -> None:
    """What vLLM calls. May be called again; never raises."""
    global _plugin
    try:
        if _plugin is None:
            _plugin = VllmPlugin(stand_by())
            _plugin.enter()
    except Exception as error:  # noqa: BLE001 - vLLM does not guard its plugins
        say(f"the vLLM plugin stays off: {type(error).__name__}: {error}")


class VllmPlugin:
    """The hooks of this process, inherited by its forked children."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._hooks = Hooks("vllm", probe.report)
        self._worker: VllmWorker | None = None

    def enter(self) -> None:
        """Put the hooks in place, now or when vLLM imports the modules. Imports nothing itself."""
        if self._probe.settings.enabled:
            self._hooks.when_imported(WORKER_MODULE, self._hook_workers)
            self._hooks.when_imported(SPARSE_MODULE, self._hook_builder)

    def _hook_workers(self, module: ModuleType) -> None:
        self._hooks.around(module.WorkerBase, "__init__", after=self._worker_made)

    def _worker_made(self, worker: Foreign, *_: object, **__: object) -> None:
        self._worker = VllmWorker(self._probe, worker.vllm_config, worker)
        self._worker.attach(worker.rank)
        self._worker.watch(self._hooks)

    def _hook_builder(self, module: ModuleType) -> None:
        name = next(name for name in _BUILDERS if hasattr(module, name))
        self._hooks.around(getattr(module, name), "__init__", after=self._builder_made)

    def _builder_made(self, builder: Foreign, *_: object, **__: object) -> None:
        parallel = builder.vllm_config.parallel_config
        if self._worker is None or self._worker.pid != os.getpid():
            # No worker object of a kind that is known, but only a worker makes builders.
            self._worker = VllmWorker(self._probe, builder.vllm_config, None)
            self._worker.attach(getattr(parallel, "rank", 0))
        dcp = getattr(builder, "dcp_world_size", parallel.decode_context_parallel_size)
        self._worker.size_sparse_workspace(sys.modules[SPARSE_MODULE], builder.device, dcp)
