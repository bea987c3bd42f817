"""What `ws-guard run` puts first on PYTHONPATH: every Python that starts imports it.

It starts the watch for FlashInfer and then does what this Python would have done without it: it
hands over to the next `sitecustomize`, whose errors are its own. Any Python may meet this file,
2.7 and those that ws_guard cannot run in included: only syntax and modules that all of them have.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))

if sys.version_info >= (3, 10):
    try:
        __import__("ws_guard_watch").start(os.path.dirname(os.path.dirname(_HERE)))
    except Exception:  # noqa: BLE001 - whatever it is, this process must start as ever
        pass

# While the next one is looked for this directory is none. It comes back afterwards: whoever makes a
# PYTHONPATH of sys.path passes the watch on.
_on_path = _HERE in sys.path
sys.path[:] = [entry for entry in sys.path if entry != _HERE]
# Kept alive under another name: Python 2 empties a module that nobody holds any more.
_self = sys.modules.pop("sitecustomize")
try:
    __import__("sitecustomize")
except ImportError as error:
    # As `site` does it: that there is none is no error, that it imports in vain is one.
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = _self
finally:
    if _on_path and _HERE not in sys.path:
        sys.path.insert(0, _HERE)
