"""The inner processes of a sandbox: a zygote, and a supervisor for every run.

The zygote is started once, clean and small, and copied (fork) for every run. It holds nothing worth stealing:
no environment, no open files but its control socket, no test. It never runs foreign code itself. With
namespaces it is the first process of a process namespace, so that everything it ever started ends with it.

A supervisor starts the program of one run, waits for it or kills it, and reports. Everything the program
leaves behind goes with it. With namespaces the program is the first process of its own process namespace, and
the kernel ends the others with it. Without, its orphans become children of the supervisor, which stops and
kills them until there are none.
"""

import contextlib
import fcntl
import gc
import json
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from archer.rewards.sandbox import examiner, kernel, program, seccomp
from archer.rewards.sandbox.confinement import (
    Confinement,
    Layers,
    RunReport,
    Setup,
    enter_view,
    readable_paths,
    world_readable,
)

_NOBODY = 65534
_FIRST_OWN_USER = 0x60000000
_SAFE_DESCRIPTOR = 100
_ROLES: dict[str, Callable[[bytes], None]] = {
    "script": program.run_script,
    "serve": program.serve,
    "examine": examiner.examine,
}


def main(control_fd: int, setup_json: str) -> None:
    """Confine, report the layers, then start runs until the other side hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    setup = Setup.from_json(json.loads(setup_json))
    sys.path.extend(setup.packages)
    readable = tuple(readable_paths(setup.packages))
    user, is_root = _unused_user(), os.geteuid() == 0
    if "namespaces" not in setup.without:
        try:
            is_root = _enter_namespaces(readable) and is_root
        except OSError as error:
            control.send(json.dumps({"refused": f"namespaces: {error}"}).encode())
            os._exit(1)
    confinement = _confinement(setup, readable, user if is_root else None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps supervisors
    gc.collect()
    gc.freeze()
    control.send(json.dumps({"layers": asdict(confinement.layers)}).encode())
    _serve(control, confinement)


def _enter_namespaces(readable: tuple[str, ...]) -> bool:
    """Move this process into namespaces of its own, and tell whether it kept its user id."""
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    user, group = os.geteuid(), os.getegid()
    try:
        kernel.unshare(flags | kernel.CLONE_NEWPID)
        kept = True
    except PermissionError:
        kernel.unshare(flags | kernel.CLONE_NEWPID | kernel.CLONE_NEWUSER)
        kept = False
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{_NOBODY} {user} 1"),
            ("gid_map", f"{_NOBODY} {group} 1"),
        ):
            with Path(f"/proc/self/{name}").open("w") as file:
                file.write(text)
    zygote = os.fork()
    if zygote:
        _, status = os.waitpid(zygote, 0)
        os._exit(1 if status else 0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    enter_view(readable)
    return kept


def _confinement(setup: Setup, readable: tuple[str, ...], own_user: int | None) -> Confinement:
    missing = [f"{name}: switched off" for name in setup.without]
    namespaces = "namespaces" not in setup.without
    if "own_user" in setup.without:
        own_user = None
    if own_user is not None and not namespaces and not world_readable(readable):
        own_user = None
        missing.append("own user: Python lies in a folder that only its owner can read")
    landlock_version = 0
    if "landlock" not in setup.without:
        try:
            landlock_version = kernel.landlock_version()
        except OSError as error:
            missing.append(str(error))
    filtered = "seccomp" not in setup.without and _try_seccomp()
    if not filtered and "seccomp" not in setup.without:
        missing.append("seccomp: not on this machine or kernel")
    layers = Layers(namespaces, own_user is not None, landlock_version, filtered, tuple(missing))
    return Confinement(layers, setup.limits, readable, os.geteuid() if own_user is None else own_user)


def _unused_user() -> int:
    """Return a user id that nobody has, different for every zygote, for the kernel counts processes by it."""
    first, _, count = map(int, Path("/proc/self/uid_map").read_text().split()[:3])
    wanted = _FIRST_OWN_USER + os.getpid()
    return wanted if first <= wanted < first + count else _NOBODY


def _try_seccomp() -> bool:
    if not seccomp.supported():
        return False
    first_pid = 1  # what a program has in its namespace: built now, for all runs
    code = seccomp.build_filter(first_pid)
    child = os.fork()
    if child == 0:
        try:
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            kernel.install_seccomp(code)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _serve(control: socket.socket, confinement: Confinement) -> None:
    orphaned, held = os.pipe()  # supervisors read the one end, which ends when this process does
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 6)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            os.close(held)
            _run(json.loads(message), descriptors, confinement, orphaned)
        for descriptor in descriptors:
            os.close(descriptor)


def _run(
    request: dict[str, Any], descriptors: list[int], confinement: Confinement, orphaned: int
) -> NoReturn:
    """Be the supervisor of one run: carry it out, report, and end."""
    job_file, *program_files, lifeline = descriptors
    job = os.pread(job_file, os.fstat(job_file).st_size, 0)
    try:
        run = partial(_ROLES[request["role"]], job)
        ended = supervise(confinement, program_files, (lifeline, orphaned), request["wall_s"], run)
        report: dict[str, Any] = {"report": asdict(ended)}
    except Exception as error:
        report = {"failure": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(OSError):  # the caller is gone
        os.write(lifeline, json.dumps(report).encode())
    os._exit(0)


def supervise(
    confinement: Confinement,
    files: list[int],
    ends: tuple[int, int],
    wall_s: float,
    main: Callable[[], None],
) -> RunReport:
    """Run `main` in a confined child for at most `wall_s` seconds.

    The child has no other files than `files` as its descriptors 0, 1, 2 and 3, the channel it talks over. The
    run also ends when one of `ends` becomes readable: the caller has hung up, or the zygote has ended.
    """
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
    for descriptor in files:
        os.close(descriptor)
    confined = ours.recv(1)
    if confined:
        ours.send(b"x")
        ours.close()
    timed_out = confined != b"" and not _wait(pid, woken, ends, time.monotonic() + wall_s)
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


def _wait(pid: int, woken: int, ends: tuple[int, int], deadline: float) -> bool:
    """Wait until the program has ended or is no longer wanted; False when the deadline came first."""
    poll = select.poll()
    for descriptor in (*ends, woken):
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


def _become_program(confinement: Confinement, files: list[int], wall_s: float, handshake: int) -> None:
    """Leave this process the run's files and its rights as a program; end it if that fails."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, _SAFE_DESCRIPTOR) for each in (*files, handshake)]
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
