"""The Linux system calls that Python's standard library lacks, as functions that raise OSError."""

import ctypes
import os
import platform
import struct
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4
_MNT_DETACH, _AT_FDCWD, _AT_RECURSIVE = 2, -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
_CAPABILITY_VERSION_3 = 0x20080522
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442  # newer calls have one number on every machine
# Landlock
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_QUERY_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_TCP_BIND_AND_CONNECT = 0b11
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def system_call(what: str, number: int, *arguments: object) -> int:
    """Make the system call `number`; pointers go as bytes or ctypes objects."""
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments), what)


def unshare(flags: int) -> None:
    """Give this process (for CLONE_NEWPID: its next child) namespaces of its own."""
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount `source` at `target`, as mount(2)."""
    encoded = [None if text is None else text.encode() for text in (kind, data)]
    outcome = _libc.mount(
        source.encode(), target.encode(), encoded[0], ctypes.c_ulong(flags), ctypes.c_char_p(encoded[1])
    )
    _checked(outcome, f"mount {target}")


def restrict_mount(target: str, attributes: int) -> None:
    """Add attributes, such as MOUNT_ATTR_RDONLY, to a mount and all mounts below it."""
    wanted = struct.pack("=QQQQ", attributes, 0, 0, 0)
    system_call(
        f"mount_setattr {target}",
        _MOUNT_SETATTR,
        ctypes.c_int(_AT_FDCWD),
        target.encode(),
        ctypes.c_uint(_AT_RECURSIVE),
        wanted,
        ctypes.c_size_t(len(wanted)),
    )


def change_root(new_root: str) -> None:
    """Make a mount point the root folder of this process's mount namespace and let go of the old root."""
    number = _PIVOT_ROOT[platform.machine()]
    os.chdir(new_root)
    system_call("pivot_root", number, b".", b".")  # the old root now lies over the new one
    _checked(_libc.umount2(b".", _MNT_DETACH), "umount of the old root")
    os.chdir("/")


def prctl(option: int, argument: int = 0) -> None:
    """Change a property of this process, as prctl(2)."""
    zero = ctypes.c_ulong(0)
    _checked(_libc.prctl(option, ctypes.c_ulong(argument), zero, zero, zero), f"prctl {option}")


def install_seccomp(program: bytes) -> None:
    """Filter this process's system calls from now on. `program` is an array of `struct sock_filter`."""
    code = ctypes.create_string_buffer(program, len(program))
    descriptor = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    mode_filter = 2
    outcome = _libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(mode_filter), descriptor)
    _checked(outcome, "seccomp")


def empty_bounding_set() -> None:
    """Give up all capabilities that a later exec could bring back; needs CAP_SETPCAP."""
    capability = 0
    while _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) == 0:
        capability += 1


def drop_capabilities() -> None:
    """Give up all capabilities of this process."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, bytes(24)), "capset")


def landlock_version() -> int:
    """Return the version of Landlock, which takes file system rights away (Linux 5.13); OSError for none."""
    return system_call("landlock", _CREATE_RULESET, None, 0, _QUERY_VERSION)


def restrict_files(abi: int, readable: Sequence[str], writable: Sequence[str]) -> None:
    """Leave this process only these paths to read and to write; no TCP (version 4), no signals out (6)."""
    newest = {1: 12, 2: 13, 3: 14, 4: 14}.get(abi, 15)
    handled = (1 << (newest + 1)) - 1  # all rights that this version knows: what is not granted is denied
    attributes = [handled]
    if abi >= 4:
        attributes.append(_TCP_BIND_AND_CONNECT)
    if abi >= 6:
        attributes.append(_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    packed = struct.pack(f"={len(attributes)}Q", *attributes)
    ruleset = system_call("landlock_create_ruleset", _CREATE_RULESET, packed, len(packed), 0)
    for paths, rights in ((readable, _READ), (writable, handled)):
        for path in paths:
            if Path(path).exists():
                _grant(ruleset, path, rights & handled)
    system_call("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _grant(ruleset: int, path: str, rights: int) -> None:
    holder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    granted = rights if Path(path).is_dir() else rights & _ON_FILES
    rule = struct.pack("=Qi", granted, holder)
    system_call(f"landlock_add_rule {path}", _ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    os.close(holder)
