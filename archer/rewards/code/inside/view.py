"""The file system that programs see: Python and its libraries, read-only, and one private folder."""

import os
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from archer.rewards.code.inside import kernel

PRIVATE_FOLDER = "/box"
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


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


def mount_private_folder(size_bytes: int, owner: int) -> None:
    """Mount an empty folder that vanishes with this process's mount namespace."""
    data = f"size={size_bytes},nr_inodes=4096,mode=0700,uid={owner},gid={owner}"
    kernel.mount("tmpfs", PRIVATE_FOLDER, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, data)
