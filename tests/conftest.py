"""What all tests share: signals as a terminal would have them."""

from __future__ import annotations

import signal

# A shell that starts a job in the background has it ignore these, and so would all that tests
# start: whoever ignores a signal when it is executed goes on ignoring it.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
