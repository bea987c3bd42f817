"""Forked workers of one engine: `fork.py`, printing JSON.

The parent loads the plugins, as an `LLM` object does, and forks its workers: vLLM does not call the
plugin in them again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from types import SimpleNamespace as Namespace
from typing import Any

from boards import documents
from vllm.plugins import load_general_plugins

BOARD = os.environ["WS_GUARD_BOARD"]
RANKS = 3


def start(rank: int, ready: Any, leave: Any) -> None:
    import torch
    import vllm.plugins
    from vllm.v1.worker.worker_base import WorkerBase
    from vllm_worker import configuration

    assert vllm.plugins.plugins_loaded
    backend = Namespace(get_name=lambda: "FLASH_ATTN")
    nothing = Namespace(FlashInferMLASparseTRTLLMBackend=backend)
    WorkerBase(configuration(torch, nothing, Namespace()), rank, rank, "")
    ready.release()
    leave.acquire()


def main() -> None:
    load_general_plugins()
    context = multiprocessing.get_context("fork")
    ready, leave = context.Semaphore(0), context.Semaphore(0)
    workers = [context.Process(target=start, args=(n, ready, leave)) for n in range(RANKS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        assert ready.acquire(timeout=60), worker
    attached = documents(BOARD)
    for _ in workers:
        leave.release()
    for worker in workers:
        worker.join()
    print(json.dumps({"attached": attached, "afterwards": documents(BOARD)}))


if __name__ == "__main__":
    main()
