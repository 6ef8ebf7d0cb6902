"""Telling that a run died of memory: from its exit status and the end of its log."""

import signal

SIGNS = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "HIP out of memory",
    "torch.OutOfMemoryError",
    "torch.cuda.OutOfMemoryError",
    "ray.exceptions.OutOfMemoryError",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "MemoryError",
    "std::bad_alloc",
    "Cannot allocate memory",
)
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # the second is how a shell in between reports the first


def died_of_memory(returncode: int, log_end: str) -> str | None:
    """Return the sign that a process died of memory, or None.

    The kernel's out-of-memory killer sends SIGKILL and leaves nothing in the log; whoever else sends it, asks
    for the same second chance.
    """
    if returncode == 0:
        return None
    if returncode in KILLED:
        return "killed with SIGKILL, as the kernel does when memory runs out"
    found = [sign for sign in SIGNS if sign in log_end]
    return found[0] if found else None
