"""What a program is confined by: layers of isolation, limits, and the file system that it sees.

`Confinement.apply` gives up, for good, everything that a program must not have; it is called in the process
that will run the program.
"""

import os
import resource
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archer.rewards.sandbox import kernel, seccomp

_STACK_BYTES = 120 * 2**20  # the kernel keeps 128 MiB clear for the first thread's stack
PRIVATE_FOLDER = "/box"
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True)
class Layers:
    """The layers of isolation that this machine gives; limits and a clean environment always hold."""

    namespaces: bool  # own view of files, processes, network, shared memory; needs root or user namespaces
    own_user: bool  # a user id that owns nothing, when the caller is root
    landlock: int  # version of the kernel's Landlock, which takes file system rights away; 0 for none
    seccomp: bool  # a filter that refuses new processes, sockets and calls that reach other processes
    missing: tuple[str, ...] = ()  # why layers are missing

    @property
    def isolated(self) -> bool:
        """Whether programs reach neither the network, nor other processes, nor the user's files."""
        return self.namespaces or (self.seccomp and (self.landlock > 0 or self.own_user))

    def describe(self) -> str:
        """Return one line that names what holds and what does not."""
        named = {
            "namespaces": self.namespaces,
            "own user": self.own_user,
            f"Landlock {self.landlock or ''}".strip(): self.landlock > 0,
            "seccomp": self.seccomp,
        }
        present = ", ".join(name for name, holds in named.items() if holds) or "none"
        absent = ", ".join(name for name, holds in named.items() if not holds) or "none"
        reasons = f" ({'; '.join(self.missing)})" if self.missing else ""
        return f"layers: {present}; missing: {absent}{reasons}; resource limits always"


@dataclass(frozen=True)
class ProgramLimits:
    """How much one program may use."""

    memory_bytes: int  # address space
    output_bytes: int  # what it may print, and the largest file it may write
    folder_bytes: int = 64 * 2**20  # all it may keep in its private folder
    processes: int = 64  # threads and processes together, where the program's user id is its own
    open_files: int = 64  # open file descriptors


@dataclass(frozen=True)
class Setup:
    """What a sandbox's inner process is told at its start."""

    limits: ProgramLimits
    packages: tuple[str, ...]  # folders with installed packages that programs may import
    without: tuple[str, ...]  # layers not to use: `namespaces`, `own_user`, `landlock`, `seccomp`

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Setup":
        """Read what `dataclasses.asdict` made of one."""
        return cls(ProgramLimits(**data["limits"]), tuple(data["packages"]), tuple(data["without"]))


@dataclass(frozen=True)
class RunReport:
    """How a run ended."""

    exit_code: int  # the exit status, or minus the number of the signal that ended the program
    timed_out: bool  # whether it was killed for running too long
    peak_memory_bytes: int  # the most memory it had in use
    cpu_s: float  # the processor time it used


@dataclass(frozen=True)
class Confinement:
    """How programs are confined here; decided once, before the first."""

    layers: Layers
    limits: ProgramLimits
    readable: tuple[str, ...]  # what programs may read, as absolute paths
    user: int  # the user and group id they run under

    def apply(self, cpu_s: int) -> None:
        """Confine this process. `cpu_s` is the processor time after which the kernel kills it."""
        os.setsid()
        if self.layers.namespaces:
            _mount_private_folder(self.limits.folder_bytes, self.user)
            os.chdir(PRIVATE_FOLDER)
        else:
            os.chdir("/")
        self._limit_resources(cpu_s)
        kernel.empty_bounding_set()
        if self.layers.own_user:
            os.setgroups([])
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # forgotten by setresuid, hence after it
        if self.layers.landlock:
            writable = [PRIVATE_FOLDER] if self.layers.namespaces else []
            kernel.restrict_files(self.layers.landlock, self.readable, [*writable, *DEVICES])
        if self.layers.seccomp:
            kernel.install_seccomp(seccomp.build_filter(os.getpid()))

    def _limit_resources(self, cpu_s: int) -> None:
        amounts = {
            resource.RLIMIT_CPU: cpu_s,
            resource.RLIMIT_AS: self.limits.memory_bytes,
            resource.RLIMIT_STACK: _STACK_BYTES,
            resource.RLIMIT_FSIZE: self.limits.output_bytes,
            resource.RLIMIT_NOFILE: self.limits.open_files,
            **dict.fromkeys((resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK), 0),
        }
        if self.layers.namespaces or self.layers.own_user:
            # Elsewhere the kernel would count all of the user's processes, the trainer's too.
            amounts[resource.RLIMIT_NPROC] = self.limits.processes
        for kind, amount in amounts.items():
            hard = resource.getrlimit(kind)[1]
            amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
            resource.setrlimit(kind, (amount, amount))


def world_readable(paths: Sequence[str]) -> bool:
    """Tell whether a user who owns nothing can read all these folders."""
    everyone = 0o001
    parts = {part for path in map(Path, paths) for part in (path, *path.parents)}
    return all(part.stat().st_mode & everyone for part in parts if part.is_dir())


def readable_paths(packages: Sequence[str]) -> list[str]:
    """Return what a Python program needs to read, as real paths, none of them inside another."""
    python = [sys.base_prefix, sys.base_exec_prefix, sysconfig.get_path("stdlib"), *packages]
    python += [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    wanted = {Path(path).resolve() for path in (*python, *_LIBRARIES, *_FILES) if Path(path).exists()}
    return sorted(str(path) for path in wanted if wanted.isdisjoint(path.parents))


def enter_view(readable: Sequence[str]) -> None:
    """Replace this process's root folder by a small read-only one; needs a mount namespace of its own."""
    # Held open, because the new root is first mounted over a folder that may hide some of them.
    holders = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (*readable, *DEVICES)}
    links = {path: path.readlink() for path in map(Path, (*_LIBRARIES, *_FILES)) if path.is_symlink()}
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    root = Path(tempfile.gettempdir())
    tempfile.tempdir = None  # found here and remembered, it would be that of every program as well
    kernel.mount("tmpfs", str(root), "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755,size=1m")
    for path, holder in holders.items():
        _bind(Path(f"/proc/self/fd/{holder}"), _below(root, path), is_device=path in DEVICES)
        os.close(holder)
    for link, destination in links.items():
        if not os.path.lexists(_below(root, link)):
            _below(root, link).parent.mkdir(parents=True, exist_ok=True)
            _below(root, link).symlink_to(destination)
    _below(root, PRIVATE_FOLDER).mkdir()
    if not os.path.lexists(root / "tmp"):
        (root / "tmp").symlink_to(PRIVATE_FOLDER)
    kernel.change_root(str(root))
    kernel.restrict_mount("/", kernel.MOUNT_ATTR_RDONLY)


def _below(root: Path, path: Path | str) -> Path:
    return root / str(path).lstrip("/")


def _bind(source: Path, target: Path, is_device: bool) -> None:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(exist_ok=False)
    kernel.mount(str(source), str(target), None, kernel.MS_BIND | kernel.MS_REC)
    attributes = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID
    kernel.restrict_mount(str(target), attributes if is_device else attributes | kernel.MOUNT_ATTR_NODEV)


def _mount_private_folder(size_bytes: int, owner: int) -> None:
    """Mount an empty folder that vanishes with this process's mount namespace."""
    data = f"size={size_bytes},nr_inodes=4096,mode=0700,uid={owner},gid={owner}"
    kernel.mount("tmpfs", PRIVATE_FOLDER, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, data)
