"""The command that `run` runs: started, sent our signals, waited for.

It stays in our process group, so that terminal, job control and standard streams are the same as
without us. Signals are taken by `sigwaitinfo`, not by handlers: only there is it told who sent one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

#: What stops and continues a process group is the shell's business; what tells of our own faults
#: and limits is no message to anybody else; the rest cannot be taken, or is about our own files.
_OUR_OWN = {
    signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT, signal.SIGSTOP, signal.SIGKILL,
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS,
    signal.SIGABRT, signal.SIGXCPU, signal.SIGXFSZ, signal.SIGPIPE, signal.SIGCHLD,
    signal.SIGWINCH, signal.SIGURG,
}  # fmt: skip
_FORWARDED = signal.valid_signals() - _OUR_OWN
_HELD = _FORWARDED | {signal.SIGCHLD}
#: Python ignores these two, and what is ignored stays ignored in a new program.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

#: `si_code` of a signal that the kernel sent: of a key, for instance.
_SI_KERNEL = 0x80
_SIGNAL_OFFSET = 128


@contextlib.contextmanager
def held_signals() -> Iterator[set[int]]:
    """Hold back what is to be passed on; gives the mask from before, for the command.

    Threads inherit the mask: enter this before any is started. What comes after the command's end
    has nobody to go to any more, and is dropped.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    # Whoever started us may have it ignored: then nobody could be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield {int(number) for number in before}
    finally:
        while signal.sigtimedwait(_HELD, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Child(NamedTuple):
    """The running command. Everything here happens within `held_signals`."""

    pid: int

    @classmethod
    def start(cls, command: Sequence[str], environ: Mapping[str, str], mask: set[int]) -> Child:
        """Start a command; OSError where there is none.

        Other than `subprocess` this passes on every descriptor that was passed to us, and needs no
        Python between fork and exec, where the exporter's thread might hold a lock.
        """
        if not command[0]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
        pid = os.posix_spawnp(
            command[0], list(command), environ, setsigmask=mask, setsigdef=_IGNORED_BY_PYTHON
        )
        return cls(pid)

    def wait(self) -> int:
        """Pass signals on until the command ends; its exit code, 128+n if signal n ended it."""
        while True:
            told = signal.sigwaitinfo(_HELD)
            if told.si_signo != signal.SIGCHLD:
                self._pass_on(told)
            elif (code := self._reap()) is not None:
                return code

    def _pass_on(self, told: signal.struct_siginfo) -> None:
        # A key reaches the whole foreground group: the command has it already, and engines take a
        # second Ctrl-C for impatience.
        from_key = told.si_code == _SI_KERNEL and told.si_signo in (signal.SIGINT, signal.SIGQUIT)
        if not from_key:
            # EPERM: a command that became another user's, as sudo does.
            with contextlib.suppress(OSError):
                os.kill(self.pid, told.si_signo)

    def _reap(self) -> int | None:
        """Reap whoever has ended: as PID 1 we inherit the orphans of the whole container."""
        code = None
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.pid:
                    code = os.waitstatus_to_exitcode(ended[1])
        return code if code is None or code >= 0 else _SIGNAL_OFFSET - code
