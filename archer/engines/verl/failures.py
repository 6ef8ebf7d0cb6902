"""What goes wrong in other processes, told in one message."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from archer.engines.verl.checkpoints import VerlRunFolder
from archer.errors import ArcherError


@contextmanager
def as_archer_error(remedy: Callable[[], str]) -> Iterator[None]:
    """Turn an error of Ray's into an ArcherError: what happened, then what is safe and how to go on."""
    import ray.exceptions

    try:
        yield
    except ray.exceptions.RayError as error:
        cause = own_error(error)
        raise ArcherError(cause or f"{what_happened(error)}\n{remedy()}") from error
    except ConnectionError as error:
        raise ArcherError(f"Ray could not be reached: {error}\n{remedy()}") from error


def own_error(error: BaseException) -> str | None:
    """The message of an ArcherError that a worker raised."""
    cause = getattr(error, "cause", None)
    return str(cause) if isinstance(cause, ArcherError) else None


def what_happened(error: BaseException) -> str:
    """The failure in a sentence: a dead process, or the last line of a worker's traceback."""
    import ray.exceptions

    text = str(error)
    if isinstance(error, ray.exceptions.ActorDiedError | ray.exceptions.WorkerCrashedError):
        name = re.search(r"class_name: (\S+)", text)
        node = re.search(r"ip: (\S+)", text)
        exit_type = re.search(r"Worker exit type: (\S+)", text)
        where = f" on {node[1]}" if node else ""
        kind = f" ({exit_type[1]})" if exit_type else ""
        return (
            f"A worker process died{where}: {name[1] if name else 'unknown'}{kind}. Often it was killed for "
            "want of memory; its last words are in Ray's logs."
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"A worker failed: {lines[-1] if lines else type(error).__name__}"


def how_to_go_on(folder: VerlRunFolder, logs: Path | None) -> str:
    """What the same command will do, and where the workers' logs are."""
    newest = folder.checkpoints.latest()
    again = (
        f"The same command goes on from step {newest.step}."
        if newest is not None
        else "There is no checkpoint yet: the same command starts over."
    )
    where = "" if logs is None else f" Ray's logs: {logs}"
    return f"The traces and checkpoints in {folder.path} are whole. {again}{where}"
