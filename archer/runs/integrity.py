"""Whether a checkpoint is whole: files as they were saved, state that belongs to the model, finite weights.

`checkpoint.json` holds size and digest of every file that was saved. All files are compared with it before
anything is loaded, so a file that was cut short, emptied, overwritten, changed or taken from another run is
named, whatever is wrong inside it. What a digest cannot tell (a checkpoint without one, of another model) is
checked against the model itself.
"""

import hashlib
import json
import os
import pickle
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from archer.errors import ArcherError
from archer.generation.model import not_finite

MANIFEST = "checkpoint.json"
STATE_FILE = "training_state.pt"
WEIGHTS = (".safetensors",)
STATE_KEYS = {"step": int, "optimizer": dict, "data": dict, "kl_control": dict, "progress": dict}
MOMENTS = ("exp_avg", "exp_avg_sq")
PART_BYTES = 2**18


class DamagedCheckpointError(ArcherError):
    """A checkpoint that cannot be resumed from; the message names the file."""

    def __init__(self, file: Path, problem: str) -> None:
        folder = next((p for p in file.parents if p.name.startswith("global_step_")), file.parent)
        super().__init__(
            f"{file} {problem}. This checkpoint cannot be resumed from: move {folder} away to resume "
            "from the checkpoint before it (or from the start, where there is none), or choose another "
            "trainer.experiment_name=NAME."
        )


class _Place(Protocol):
    @property
    def path(self) -> Path: ...


def write_manifest(folder: Path, step: int, run_id: str | None, parts: int | None = None) -> None:
    """Describe every file of a checkpoint that has just been written; `parts`: see `digest`."""
    files = {
        str(path.relative_to(folder)): {
            "bytes": path.stat().st_size,
            "digest": digest(path, parts),
            "parts": parts,
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    described = {"step": step, "run_id": run_id, "files": files}
    described["digest"] = _digest_of(described)
    (folder / MANIFEST).write_text(json.dumps(described, indent=2) + "\n")


def _digest_of(described: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest's content, so that damage to the manifest is not blamed on another file."""
    content = {key: described.get(key) for key in ("step", "run_id", "files")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest(path: Path, parts: int | None = None) -> str:
    """SHA-256 of a file; given `parts`, of that many spread evenly from first to last byte of a large one.

    Parts are for checkpoints of many devices: one process would take minutes to read a terabyte.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if parts is None or size <= parts * PART_BYTES:
            return hashlib.file_digest(file, "sha256").hexdigest()
        state = hashlib.sha256(str(size).encode())
        for part in range(parts):
            file.seek((size - PART_BYTES) * part // (parts - 1))
            state.update(file.read(PART_BYTES))
        return state.hexdigest()


def saved_run_id(folder: Path) -> str | None:
    """The run that a checkpoint's manifest names, if it has one."""
    path = folder / MANIFEST
    named = _manifest(path).get("run_id") if path.is_file() else None
    return named if isinstance(named, str) else None


def check_files(folder: Path, step: int, run_id: str | None) -> None:
    """Compare a checkpoint with its manifest; one without a manifest must at least be readable.

    run_id: of the run whose folder it lies in; None: it may be any run's.
    """
    path = folder / MANIFEST
    _readable(path, must_exist=False)
    if not path.exists():
        load_training_state(folder, step)
        for file in sorted(folder.rglob("*.safetensors")):
            _tensors(file)
        return
    described = _manifest(path)
    if described["step"] != step:
        raise DamagedCheckpointError(
            path, f"says that this is the checkpoint of step {described['step']}, not of step {step}"
        )
    if run_id is not None and described.get("run_id") not in (None, run_id):
        raise DamagedCheckpointError(
            path, f"says that this is a checkpoint of another run ({described['run_id']})"
        )
    for name, facts in described["files"].items():
        file = folder / name
        _readable(file)
        size = file.stat().st_size
        if size != facts["bytes"]:
            raise DamagedCheckpointError(file, f"has {size} bytes, {facts['bytes']} were saved")
        if digest(file, facts.get("parts")) != facts["digest"]:
            raise DamagedCheckpointError(file, "is not what was saved: its content has changed")
    weights = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in WEIGHTS}
    surplus = weights - described["files"].keys()
    if surplus:
        raise DamagedCheckpointError(folder / min(surplus), "was not saved with this checkpoint")


def load_training_state(folder: Path, step: int) -> dict[str, Any]:
    """Return what was saved beside the weights, its kinds checked."""
    file = folder / STATE_FILE
    if not file.exists():
        raise ArcherError(f"{folder} has no {STATE_FILE}: it is a model, not a checkpoint to resume from.")
    _readable(file)
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError(file, f"is damaged ({_first_line(error)})") from error
    except (pickle.UnpicklingError, zipfile.BadZipFile, ImportError, MemoryError, AssertionError) as error:
        raise DamagedCheckpointError(file, f"is damaged ({_first_line(error)})") from error
    if not isinstance(state, dict):
        raise DamagedCheckpointError(file, f"holds a {type(state).__name__}, not the state of a training run")
    for key, kind in STATE_KEYS.items():
        if not isinstance(state.get(key), kind):
            raise DamagedCheckpointError(
                file, f"holds no state of this engine: {key!r} is missing or not of its type"
            )
    if state["step"] != step:
        raise DamagedCheckpointError(file, f"is the state of step {state['step']}, not of step {step}")
    return state


def check_optimizer(state: Mapping[str, Any], parameters: list[Tensor], folder: Path) -> None:
    """Refuse moments of another model: torch itself only counts them."""
    file = folder / STATE_FILE
    groups, moments = state.get("param_groups"), state.get("state")
    if not isinstance(groups, list) or not isinstance(moments, dict):
        raise DamagedCheckpointError(file, "holds no state of an optimizer")
    saved = [index for group in groups for index in group.get("params", ())]
    if len(saved) != len(parameters):
        raise DamagedCheckpointError(
            file, f"holds the optimizer of {len(saved)} tensors, the model has {len(parameters)}"
        )
    foreign = moments.keys() - set(saved)
    if foreign:
        raise DamagedCheckpointError(file, f"holds moments of a tensor {min(foreign)} that there is not")
    for number, (index, parameter) in enumerate(zip(saved, parameters, strict=True)):
        for name in MOMENTS if index in moments else ():
            moment = moments[index].get(name)
            if not isinstance(moment, Tensor) or moment.shape != parameter.shape:
                shape = tuple(moment.shape) if isinstance(moment, Tensor) else moment
                raise DamagedCheckpointError(
                    file,
                    f"holds {name} of tensor {number} as {shape}, the model's is {tuple(parameter.shape)}",
                )
            if not bool(moment.isfinite().all()):
                raise DamagedCheckpointError(file, f"holds {name} of tensor {number} with values not finite")
    if 0 < len(moments) < len(saved):
        raise DamagedCheckpointError(file, f"holds moments of {len(moments)} of {len(saved)} tensors")


def refuse_not_finite(model: nn.Module, step: int, newest: _Place | None) -> None:
    """Stop with weights that are NaN or infinite; `newest` is the last checkpoint, which stays."""
    bad = next(not_finite(model), None)
    if bad is None:
        return
    way_out = f"{newest.path} is untouched" if newest is not None else "nothing was saved before"
    raise ArcherError(
        f"After step {step} the weights are not finite ({bad} has NaN or infinite values): the run has "
        f"diverged. They are not saved; {way_out}. Lower actor_rollout_ref.actor.optim.lr or "
        "actor_rollout_ref.actor.grad_clip, and run from the last good checkpoint or from the start."
    )


def _manifest(path: Path) -> dict[str, Any]:
    try:
        described = json.loads(path.read_bytes())
        files = described["files"]
        sound = bool(files) and all(
            isinstance(facts["bytes"], int)
            and isinstance(facts.get("parts"), int | None)
            and isinstance(facts["digest"], str)
            and not Path(name).is_absolute()
            for name, facts in files.items()
        )
        if not sound or not isinstance(described["step"], int):
            raise ValueError("it lists no files")
        if described["digest"] != _digest_of(described):
            raise ValueError("its content has changed")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(path, f"is damaged ({_first_line(error)})") from error
    return described


def _readable(file: Path, must_exist: bool = True) -> None:
    """Refuse what cannot be opened as a file, before something waits for ever to read it."""
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        if must_exist or file.is_symlink():
            raise DamagedCheckpointError(file, "is missing") from None
        return
    except OSError as error:
        raise DamagedCheckpointError(file, f"cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(mode):
        raise DamagedCheckpointError(file, "is no regular file")
    if not os.access(file, os.R_OK):
        raise DamagedCheckpointError(file, "may not be read by this user")


def _tensors(file: Path) -> list[str]:
    """Return the names in a file of weights."""
    _readable(file)
    try:
        with safe_open(file, framework="pt") as opened:
            return list(opened.keys())
    except (OSError, SafetensorError, ValueError) as error:
        raise DamagedCheckpointError(file, f"is damaged ({_first_line(error)})") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
