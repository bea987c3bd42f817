"""The reported crash as a plain script that knows nothing of ws_guard's probe.

Eight rows fit; 12,288 rows of 64 heads with LSE do not fit into 394 MiB, and it dies of that.
"""

from __future__ import annotations

import sys

from flashinfer_calls import PUBLIC_CALLS, Shape, workspace

from ws_guard import launcher


def main(rows: int) -> None:
    """Two steps, the second of `rows`."""
    with launcher.on_cpu(launcher.build(launcher.installed_flashinfer_root())):
        buffer = workspace(394 << 20)
        for batch in (8, rows):
            PUBLIC_CALLS["sparse_mla"].build(Shape(batch, lse=True), buffer)()


if __name__ == "__main__":
    main(int(sys.argv[1]))
