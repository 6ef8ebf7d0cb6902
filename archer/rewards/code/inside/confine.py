"""Giving up, for good, everything that a program must not have. Called in the process that will run it."""

import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from archer.rewards.code.inside import kernel, landlock, seccomp, view
from archer.rewards.code.inside.layers import Layers, ProgramLimits

_STACK_BYTES = 120 * 2**20  # the kernel keeps 128 MiB clear for the first thread's stack


@dataclass(frozen=True)
class Confinement:
    """How programs are confined here; decided once, before the first."""

    layers: Layers
    limits: ProgramLimits
    readable: tuple[str, ...]
    """What programs may read, as absolute paths."""
    user: int
    """The user and group id they run under."""

    def apply(self, cpu_s: int) -> None:
        """Confine this process. `cpu_s` is the processor time after which the kernel kills it."""
        os.setsid()
        if self.layers.namespaces:
            view.mount_private_folder(self.limits.folder_bytes, self.user)
            os.chdir(view.PRIVATE_FOLDER)
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
            writable = [view.PRIVATE_FOLDER] if self.layers.namespaces else []
            landlock.restrict(self.layers.landlock, self.readable, [*writable, *view.DEVICES])
        if self.layers.seccomp:
            kernel.install_seccomp(seccomp.build_filter(os.getpid()))

    def _limit_resources(self, cpu_s: int) -> None:
        limits = self.limits
        _limit(resource.RLIMIT_CPU, cpu_s)
        _limit(resource.RLIMIT_AS, limits.memory_bytes)
        _limit(resource.RLIMIT_STACK, _STACK_BYTES)
        _limit(resource.RLIMIT_FSIZE, limits.output_bytes)
        _limit(resource.RLIMIT_NOFILE, limits.open_files)
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_MSGQUEUE, 0)
        _limit(resource.RLIMIT_MEMLOCK, 0)
        if self.layers.namespaces or self.layers.own_user:
            # Elsewhere the kernel would count all of the user's processes, the trainer's too.
            _limit(resource.RLIMIT_NPROC, limits.processes)


def _limit(kind: int, amount: int) -> None:
    hard = resource.getrlimit(kind)[1]
    amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    resource.setrlimit(kind, (amount, amount))


def world_readable(paths: Sequence[str]) -> bool:
    """Tell whether a user who owns nothing can read all these folders."""
    everyone = 0o001
    parts = {part for path in map(view.Path, paths) for part in (path, *path.parents)}
    return all(part.stat().st_mode & everyone for part in parts if part.is_dir())
