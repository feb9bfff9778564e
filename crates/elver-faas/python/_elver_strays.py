"""Ends what a child has left behind when it ended, whatever group or session that has moved to.

An INIT process and each of its children are subreapers (`prctl`): a process that has lost its parent becomes a
child of the next of them. While a child lives, what it has started stays below it; so what comes to be a child of
the INIT process, and was not forked by it, was left by one that has ended.
"""

import ctypes
import os
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36

PRCTL = ctypes.CDLL(None).prctl
FFLUSH = ctypes.CDLL(None).fflush

# How often to look again before what goes on making processes is left to who started us.
LOOKS_MAX = 1000


def keep():
    """Makes this process one that others become children of."""
    if PRCTL(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("this process cannot be a subreaper")


def children():
    """This process's children, by what the system says of all."""
    own = os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    stat = file.read()
            except OSError:
                continue
            # Behind the program's name, which may have anything in it.
            if int(stat[stat.rindex(b")") + 2 :].split()[1]) == own:
                yield int(name)


def flush():
    """Writes what Python, and the C library for modules in C, have not written yet: a child would write it again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            # Closed, or replaced by a handler with something else.
            pass
    FFLUSH(None)


def has_children():
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False


def end(known):
    """Ends all children but the known ones, and theirs."""
    for _ in range(LOOKS_MAX):
        # Without others that are known, the system says so at once.
        if not known and not has_children():
            return
        left = [pid for pid in children() if pid not in known]
        if not left:
            return
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for pid in left:
            os.waitpid(pid, 0)
    raise RuntimeError(f"{left} make processes faster than they can be ended")
