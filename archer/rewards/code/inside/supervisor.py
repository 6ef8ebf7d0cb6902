"""One run: a process of its own that starts the program, waits for it or kills it, and reports.

Everything the program leaves behind goes with it. With namespaces the program is the first process of its
own process namespace, and the kernel ends the others with it. Without, its orphans become children of the
supervisor, which stops and kills them until there are none.
"""

import fcntl
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from archer.rewards.code.inside import kernel
from archer.rewards.code.inside.confine import Confinement

_SAFE_DESCRIPTOR = 100


@dataclass(frozen=True)
class RunReport:
    """How a run ended."""

    exit_code: int
    """The exit status, or minus the number of the signal that ended the program."""
    timed_out: bool
    """Whether it was killed for running too long."""
    peak_memory_bytes: int
    """The most memory it had in use."""
    cpu_s: float
    """The processor time it used."""


@dataclass(frozen=True)
class RunFiles:
    """Descriptors of a run: the program's standard files, its channel, and what tells of the run's end."""

    stdin: int
    stdout: int
    stderr: int
    channel: int
    """What the program talks over, as descriptor 3."""
    lifeline: int
    """Closed by the other side when the run is to end; the report goes there."""
    orphaned: int
    """Becomes readable when the zygote has ended; the run then ends too."""

    @property
    def of_program(self) -> tuple[int, int, int, int]:
        """What becomes the program's descriptors 0, 1, 2 and 3."""
        return self.stdin, self.stdout, self.stderr, self.channel


def supervise(
    confinement: Confinement, files: RunFiles, wall_s: float, main: Callable[[], None]
) -> RunReport:
    """Run `main` in a confined child with only the run's files, for at most `wall_s` seconds."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    if confinement.layers.namespaces:
        kernel.unshare(kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
    else:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            _become_program(confinement, files, wall_s, theirs.fileno())
            main()  # ends the process itself, unless the program has broken it
        finally:
            os._exit(1)  # a program never comes back from here to play the supervisor
    theirs.close()
    for descriptor in files.of_program:
        os.close(descriptor)
    confined = ours.recv(1)
    if confined:
        ours.send(b"x")
        ours.close()
    timed_out = confined != b"" and not _wait(pid, woken, files, time.monotonic() + wall_s)
    os.kill(pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
    _, status, usage = os.wait4(pid, 0)
    if not confinement.layers.namespaces:
        _sweep()
    if not confined:
        raise OSError("the program's process could not be confined; its error output says why")
    return RunReport(
        exit_code=os.waitstatus_to_exitcode(status),
        timed_out=timed_out,
        peak_memory_bytes=usage.ru_maxrss * 1024,
        cpu_s=usage.ru_utime + usage.ru_stime,
    )


def _wait(pid: int, woken: int, files: RunFiles, deadline: float) -> bool:
    """Wait until the program has ended or is no longer wanted; False when the deadline came first."""
    poll = select.poll()
    for descriptor in (files.lifeline, files.orphaned, woken):
        poll.register(descriptor, select.POLLIN)
    while True:
        events = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not events:
            return False
        if any(descriptor != woken for descriptor, _ in events):
            return True
        os.read(woken, 4096)  # a child ended or stopped: perhaps only an orphan of the program
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True


def _become_program(confinement: Confinement, files: RunFiles, wall_s: float, handshake: int) -> None:
    """Leave this process the run's files and its rights as a program; end it if that fails."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, _SAFE_DESCRIPTOR) for each in (*files.of_program, handshake)]
    for target, descriptor in enumerate(moved):
        os.dup2(descriptor, target)
    os.closerange(len(moved), os.sysconf("SC_OPEN_MAX"))
    own_end = len(moved) - 1
    try:
        confinement.apply(math.ceil(wall_s) + 1)
        os.write(own_end, b"r")
        if os.read(own_end, 1) != b"x":
            os._exit(1)  # the supervisor ended before the kernel was told to end us with it
        os.close(own_end)
    except OSError as error:
        os.write(2, f"{error}\n".encode())
        os._exit(1)


def _sweep() -> None:
    """Kill all descendants. Stopped first, so that what forks faster than we kill comes to an end too."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        descendants = _descendants()
        for signal_number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in descendants:
                try:
                    os.kill(pid, signal_number)
                except ProcessLookupError:
                    continue


def _descendants() -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            parents[int(entry.name)] = int(fields[1])
    found, frontier = [], [os.getpid()]
    while frontier:
        frontier = [pid for pid, parent in parents.items() if parent in frontier]
        found += frontier
    return found
