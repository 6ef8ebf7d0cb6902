"""The system call filter of a sandboxed program, written as classic BPF.

A program may use threads, files it can reach, and itself. It may not make processes, sockets, namespaces,
mounts or shared memory, nor touch other processes in any way. Denied calls fail with EPERM, as they would
for lack of rights, so that a program sees an ordinary exception.
"""

import errno
import platform
import struct
from functools import cache

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: number on (x86_64, aarch64); -1 where there is no such call
_DENIED: dict[str, tuple[int, int]] = {
    # processes: none is made, so none survives
    **{"fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281)},
    # network, also by calls that no filter sees
    **{"socket": (41, 198), "io_uring_setup": (425, 425)},
    # other processes
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271)},
    **{"process_madvise": (440, 440), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138)},
    **{"rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438)},
    **{"pidfd_send_signal": (424, 424), "setpriority": (141, 140), "ioprio_set": (251, 30)},
    **{"kcmp": (312, 272), "migrate_pages": (256, 238), "move_pages": (279, 239)},
    # who may use a file, which Landlock leaves alone
    **{"chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452)},
    **{"chown": (92, -1), "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54)},
    **{"utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88)},
    **{"setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463)},
    **{"removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16)},
    **{"removexattrat": (466, 466)},
    # namespaces and mounts
    **{"unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39)},
    **{"pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429), "open_tree": (428, 428)},
    **{"fsopen": (430, 430), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265)},
    # memory that would outlive the program or escape its limits
    **{"shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180)},
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "add_key": (248, 217)},
    **{"request_key": (249, 218), "keyctl": (250, 219)},
    # parts of the kernel that programs need not know
    **{"bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282)},
}
# Calls whose first argument names a process: only oneself.
_KILL = {"kill": (62, 129), "tgkill": (234, 131)}
_OWN_OR_ZERO = {
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}
_CLONE, _CLONE3, _PRCTL, _FCNTL, _IOCTL = (56, 220), (435, 435), (157, 167), (72, 25), (16, 29)
_CLONE_THREAD, _PR_SET_PDEATHSIG = 0x00010000, 1
# A descriptor can be told to signal another process when it becomes readable.
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _FIOSETOWN, _SIOCSPGRP = 8, 10, 15, 0x8901, 0x8902

_LOAD, _EQUALS, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data, little-endian
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_FIRST_X32_CALL = 0x40000000


def supported() -> bool:
    """Tell whether the filter is written for this machine's system call numbers."""
    return platform.machine() in _AUDIT_ARCH


@cache
def build_filter(own_pid: int) -> bytes:
    """Return the filter for a program with this process id, as an array of `struct sock_filter`."""
    machine = platform.machine()
    column = 0 if machine == "x86_64" else 1
    deny = _ERRNO | errno.EPERM
    code = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUALS, _AUDIT_ARCH[machine], yes=1),
        _step(_RETURN, _KILL_PROCESS),
        _step(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        code += [_step(_AT_LEAST, _FIRST_X32_CALL, no=1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    for numbers in _DENIED.values():
        if numbers[column] != -1:
            code += [_step(_EQUALS, numbers[column], no=1), _step(_RETURN, deny)]
    # The C library then falls back on clone, whose flags a filter can read.
    code += [_step(_EQUALS, _CLONE3[column], no=1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    code += _judge(_CLONE[column], 0, [_step(_HAS_BITS, _CLONE_THREAD, yes=1)])
    code += _judge(_PRCTL[column], 0, [_step(_EQUALS, _PR_SET_PDEATHSIG, no=1)])
    code += _judge(_FCNTL[column], 1, _none_of(_F_SETOWN, _F_SETSIG, _F_SETOWN_EX))
    code += _judge(_IOCTL[column], 1, _none_of(_FIOSETOWN, _SIOCSPGRP))
    for numbers in _KILL.values():
        code += _judge(numbers[column], 0, [_step(_EQUALS, own_pid, yes=1)])
    for numbers in _OWN_OR_ZERO.values():
        code += _judge(numbers[column], 0, [_step(_EQUALS, own_pid, yes=2), _step(_EQUALS, 0, yes=1)])
    return b"".join([*code, _step(_RETURN, _ALLOW)])


def _judge(number: int, argument: int, tests: list[bytes]) -> list[bytes]:
    """Judge one call by the low half of an argument: tests that jump over the denial allow the call."""
    verdict = [*tests, _step(_RETURN, _ERRNO | errno.EPERM), _step(_RETURN, _ALLOW)]
    load = _step(_LOAD, _ARGUMENTS + 8 * argument)
    return [_step(_EQUALS, number, no=1 + len(verdict)), load, *verdict]


def _none_of(*values: int) -> list[bytes]:
    """Return tests that all but these values pass."""
    last = len(values) - 1
    return [_step(_EQUALS, value, yes=last - place, no=place == last) for place, value in enumerate(values)]


def _step(code: int, operand: int, yes: int = 0, no: int = 0) -> bytes:
    """Return one instruction; `yes` and `no` are how many instructions a comparison jumps over."""
    return struct.pack("=HBBI", code, yes, no, operand)
