"""What a sandbox is made of here, and how much a program may use."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Layers:
    """The layers of isolation that this machine gives; limits and a clean environment always hold."""

    namespaces: bool
    """Own file system view, processes, network and shared memory. Needs root or user namespaces."""
    own_user: bool
    """A user id that owns nothing, when the caller is root."""
    landlock: int
    """Version of the kernel's Landlock, which takes file system rights away; 0 for none."""
    seccomp: bool
    """A filter that refuses new processes, sockets and calls that reach other processes."""
    missing: tuple[str, ...] = ()
    """Why layers are missing."""

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

    memory_bytes: int
    """Address space."""
    output_bytes: int
    """What it may print, and the largest file it may write."""
    folder_bytes: int = 64 * 2**20
    """All it may keep in its private folder."""
    processes: int = 64
    """Threads and processes together, where the program's user id is its own."""
    open_files: int = 64
    """Open file descriptors."""


@dataclass(frozen=True)
class Setup:
    """What a sandbox's inner process is told at its start."""

    limits: ProgramLimits
    packages: tuple[str, ...]
    """Folders with installed packages that programs may import."""
    without: tuple[str, ...]
    """Layers not to use: `namespaces`, `own_user`, `landlock`, `seccomp`."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Setup":
        """Read what `to_json` wrote."""
        return cls(ProgramLimits(**data["limits"]), tuple(data["packages"]), tuple(data["without"]))
