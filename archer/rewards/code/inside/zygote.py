"""The inner process of a sandbox: started once, clean and small, and copied (fork) for every run.

It holds nothing worth stealing: no environment, no open files but its control socket, no test. It never runs
foreign code itself. With namespaces it is the first process of a process namespace, so that everything it
ever started ends with it.
"""

import contextlib
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, NoReturn

from archer.rewards.code.inside import examiner, kernel, landlock, program, seccomp, view
from archer.rewards.code.inside.confine import Confinement, world_readable
from archer.rewards.code.inside.layers import Layers, Setup
from archer.rewards.code.inside.supervisor import RunFiles, supervise

_NOBODY = 65534
_FIRST_OWN_USER = 0x60000000
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
    readable = tuple(view.readable_paths(setup.packages))
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
            with view.Path(f"/proc/self/{name}").open("w") as file:
                file.write(text)
    zygote = os.fork()
    if zygote:
        _, status = os.waitpid(zygote, 0)
        os._exit(1 if status else 0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    view.enter_view(readable)
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
            landlock_version = landlock.version()
        except OSError as error:
            missing.append(str(error))
    filtered = "seccomp" not in setup.without and _try_seccomp()
    if not filtered and "seccomp" not in setup.without:
        missing.append("seccomp: not on this machine or kernel")
    layers = Layers(namespaces, own_user is not None, landlock_version, filtered, tuple(missing))
    return Confinement(layers, setup.limits, readable, os.geteuid() if own_user is None else own_user)


def _unused_user() -> int:
    """Return a user id that nobody has, different for every zygote, for the kernel counts processes by it."""
    first, _, count = map(int, view.Path("/proc/self/uid_map").read_text().split()[:3])
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
    job_file, stdin, stdout, stderr, channel, lifeline = descriptors
    job = os.pread(job_file, os.fstat(job_file).st_size, 0)
    files = RunFiles(stdin, stdout, stderr, channel, lifeline, orphaned)
    try:
        run = partial(_ROLES[request["role"]], job)
        report: dict[str, Any] = {"report": asdict(supervise(confinement, files, request["wall_s"], run))}
    except Exception as error:
        report = {"failure": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(OSError):  # the caller is gone
        os.write(files.lifeline, json.dumps(report).encode())
    os._exit(0)
