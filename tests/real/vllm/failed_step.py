"""What vLLM writes of a step whose model execution failed: `failed_step.py TOKENS`, as JSON.

Its own engine core writes these lines, into the log, when a worker raises.
"""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import sys

from vllm.logging_utils import dump_input
from vllm.v1.core.sched.output import SchedulerOutput

tokens = int(sys.argv[1])
step = dataclasses.replace(
    SchedulerOutput.make_empty(),
    num_scheduled_tokens={"cmpl-5-0": tokens},
    total_num_scheduled_tokens=tokens,
)
written = io.StringIO()
dump_input.logger.addHandler(logging.StreamHandler(written))
dump_input.dump_engine_exception("model='org/model'", step, None)
print(json.dumps({"written": written.getvalue().splitlines()}))
