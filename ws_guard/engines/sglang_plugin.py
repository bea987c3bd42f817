"""The plugin that SGLang loads by itself (entry-point group `sglang.srt.plugins`).

SGLang calls `plugin()` in the engine, the schedulers, the DP controller and the detokenizer. Only a
process that makes a model runner is a worker. SGLang's `HookRegistry` puts the hooks in place: it
orders them with those of other plugins, and mends what was imported by name before.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ws_guard.foreign import Foreign
from ws_guard.probe import Probe, stand_by
from ws_guard.probe.saying import say

from . import sglang_facts as facts
from .gpu import Gpu, gpu_of
from .hooks import Hooks
from .judge import Judged
from .live import holder_bytes, judge_live, planned_document, site_at
from .sglang_graphs import MODULE as DEDUP_MODULE
from .sglang_graphs import follow_replays
from .sglang_sites import SITES

RUNNER_MODULE = "sglang.srt.model_executor.model_runner"
REGISTRY_MODULE = "sglang.srt.plugins.hook_registry"
RUNNER = f"{RUNNER_MODULE}.ModelRunner"

_plugin: SglangPlugin | None = None


def plugin() -> None:
    """What SGLang calls. May be called again; never raises."""
    global _plugin
    try:
        if _plugin is None:
            _plugin = SglangPlugin(stand_by())
            _plugin.enter()
    except Exception as error:  # noqa: BLE001 - a plugin never breaks its engine
        say(f"the SGLang plugin stays off: {type(error).__name__}: {error}")


class SglangPlugin:
    """The hooks of this process, and what is known of the worker in it."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._hooks = Hooks("sglang", probe.report)
        self._attached: int | None = None
        self._gpu = Gpu("", None, None)
        self._judged: list[Judged] = []

    def enter(self) -> None:
        """Have the hooks put in place, now or when the model runner's module is imported.

        The registry would import the module, and torch with it, into processes that never need it.
        """
        if not self._probe.settings.enabled:
            return
        loaded = RUNNER_MODULE in sys.modules
        # While SGLang calls its plugins, it applies their hooks itself once all have registered.
        register = functools.partial(self._register, apply=not loaded)
        self._hooks.when_imported(RUNNER_MODULE, register)
        follow = functools.partial(follow_replays, probe=self._probe)
        self._hooks.when_imported(DEDUP_MODULE, follow)

    def _register(self, _: ModuleType, *, apply: bool) -> None:
        registered = sys.modules[REGISTRY_MODULE]
        registry, kinds = registered.HookRegistry, registered.HookType
        source = registered.HookSource(plugin_name="ws_guard", dist_name="ws-guard")
        for function, step, kind in (
            ("__init__", self._runner_starts, kinds.BEFORE),
            ("init_attention_backends", self._backends_made, kinds.AFTER),
        ):
            registry.register(f"{RUNNER}.{function}", self._step(step), kind, source=source)
        if apply:
            registry.apply_hooks()

    def _step(self, step: Callable[..., None]) -> Callable[..., None]:
        return functools.partial(self._hooks.guarded, step.__name__, step)

    def _runner_starts(self, _runner: object, *_: object, **__: object) -> None:
        """Open the slot. A draft model's runner belongs to the same worker."""
        if self._attached != os.getpid():
            self._attached = os.getpid()
            self._probe.attach(**facts.identity(sys.modules[facts.CONTEXT_MODULE]))
            self._probe.name_sites(self.site_of)

    def _backends_made(self, _result: object, runner: Foreign, *_: object, **__: object) -> None:
        """Publish the planned margins: the workspaces exist, no graph is captured yet."""
        if getattr(runner, "is_draft_worker", False):
            return
        self._runner_starts(runner)
        self._gpu = gpu_of(runner.device)
        self._probe.describe(info={"device": self._gpu.name}, planned=self._planned(runner))

    def _planned(self, runner: Foreign) -> list[dict[str, Any]] | None:
        layout = self._probe.layout
        if layout is None:
            # Without FlashInfer nothing is carved; what is not understood may carve anything.
            return [] if self._probe.verdict == "not_installed" else None
        if not self._gpu.has_kernels:
            return []
        context = sys.modules[facts.CONTEXT_MODULE]
        launch = facts.launch_of(context, runner, self._gpu.sm_count)
        buffers = {site.holder: holder_bytes(_held(site.holder)) for site in SITES}
        sizes = {name: size for name, size in buffers.items() if size is not None}
        self._judged = judge_live(launch, layout, sizes)
        return planned_document(launch, layout, self._judged)

    def site_of(self, address: int, op: str) -> str:
        """The site whose buffer has this address; "" where no live site's has."""
        return site_at(self._judged, op, address, lambda site: _held(site.holder))


def _held(holder: str) -> object:
    """The buffer that SGLang's `get_buffer` keeps under a name."""
    context = sys.modules[facts.CONTEXT_MODULE]
    return context.get_resources().buffers.get(holder)
