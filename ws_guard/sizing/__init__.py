"""Pure arithmetic over ints: layouts, slabs, scratch, thresholds, plans. Standard library only."""

from .call import Call, HeadDims
from .carving import Carve, Need, Refusal, carve, need
from .errors import InputError
from .layouts import (
    DEFAULT_WORKSPACE_BYTES,
    ENTRIES,
    ENTRY_OF_OP,
    EXTERNAL_COUNTER,
    GRID_LIMIT_BATCH,
    LAYOUTS,
    NATIVE_SLABS,
    OPS,
    SLABS,
    XQA_OPS,
    XQA_SEMAPHORE_BYTES,
    Entry,
    Layout,
    Slab,
)
from .limits import (
    last_batch_with_scratch,
    overflow_threshold_batch,
    overrun_batches,
    overruns,
    worst_need_bytes,
)
from .plan import Deployment, Plan, judge, plan
from .releases import (
    DEFAULT_SM_COUNT,
    NEWEST_SEEN,
    OLDEST_SEEN,
    is_newer_than_seen,
    layouts_of_release,
    sm_count_of_gpu,
)
from .scratch import may_use_scratch, scratch
from .slabs import Scratch, head_slab

__all__ = [
    "DEFAULT_SM_COUNT",
    "DEFAULT_WORKSPACE_BYTES",
    "ENTRIES",
    "ENTRY_OF_OP",
    "EXTERNAL_COUNTER",
    "GRID_LIMIT_BATCH",
    "LAYOUTS",
    "NATIVE_SLABS",
    "NEWEST_SEEN",
    "OLDEST_SEEN",
    "OPS",
    "SLABS",
    "XQA_OPS",
    "XQA_SEMAPHORE_BYTES",
    "Call",
    "Carve",
    "Deployment",
    "Entry",
    "HeadDims",
    "InputError",
    "Layout",
    "Need",
    "Plan",
    "Refusal",
    "Scratch",
    "Slab",
    "carve",
    "head_slab",
    "is_newer_than_seen",
    "judge",
    "last_batch_with_scratch",
    "layouts_of_release",
    "may_use_scratch",
    "need",
    "overflow_threshold_batch",
    "overrun_batches",
    "overruns",
    "plan",
    "scratch",
    "sm_count_of_gpu",
    "worst_need_bytes",
]
