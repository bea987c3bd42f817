"""What the programs do that tests put under `ws-guard run`."""

from __future__ import annotations

from pathlib import Path

#: One native call.
CALL = """
import os
from flashinfer import calls
calls.decode(16)
"""
#: Of each slot on the board, whether it is this process's.
TELL = """
import os
for name in sorted(os.listdir(os.environ["WS_GUARD_BOARD"])):
    print(int(name.split(".")[0]) == os.getpid())
"""
#: Labels of this process's slot, and the calls that it counts.
SLOT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from run_process import slots
(slot,) = slots(os.environ["WS_GUARD_BOARD"])
print([slot.document["engine"], slot.document["rank"], sum(row.eager for row in slot.rows)])
"""
