"""Landlock: a process gives up file system rights, needing no privilege for it (Linux 5.13)."""

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from archer.rewards.code.inside import kernel

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_QUERY_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_TCP_BIND_AND_CONNECT = 0b11
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def version() -> int:
    """Return the kernel's Landlock version; OSError where it has none."""
    return kernel.system_call("landlock", _CREATE_RULESET, None, 0, _QUERY_VERSION)


def _file_rights(abi: int) -> int:
    """Return all file system rights that this version knows; what is known and not granted is denied."""
    newest = {1: 12, 2: 13, 3: 14, 4: 14}.get(abi, 15)
    return (1 << (newest + 1)) - 1


def restrict(abi: int, readable: Sequence[str], writable: Sequence[str]) -> None:
    """Leave this process only these paths to read and to write; no TCP (version 4), no signals out (6)."""
    handled = _file_rights(abi)
    attributes = [handled]
    if abi >= 4:
        attributes.append(_TCP_BIND_AND_CONNECT)
    if abi >= 6:
        attributes.append(_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    packed = struct.pack(f"={len(attributes)}Q", *attributes)
    ruleset = kernel.system_call("landlock_create_ruleset", _CREATE_RULESET, packed, len(packed), 0)
    for paths, rights in ((readable, _READ), (writable, handled)):
        for path in paths:
            if Path(path).exists():
                _allow(ruleset, path, rights & handled)
    kernel.system_call("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    holder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    granted = rights if Path(path).is_dir() else rights & _ON_FILES
    rule = struct.pack("=Qi", granted, holder)
    kernel.system_call(f"landlock_add_rule {path}", _ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    os.close(holder)
