"""The folder of one evaluation.

settings.json            what was evaluated and how: the evaluation's identity
.samples.jsonl.partial   samples so far, whole chunks of prompts; a killed evaluation resumes after them
samples.jsonl            all samples, once complete
summary.json             the figures, written last: where it is, the evaluation is complete
val_trace/               the first responses, token by token
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from archer.config.compose import stored_tree
from archer.config.parse import flat
from archer.config.root import TrainConfig
from archer.data.builtin import PREFIX
from archer.data.files import sha256_of
from archer.errors import ArcherError
from archer.evaluation.evaluator import validation_sampling
from archer.evaluation.summary import Sample
from archer.files import PRIVATE, append_to, lock, plain_file, put_in_place, write_atomically
from archer.generation.device import Compute
from archer.trace.files import VALIDATION

WEIGHTS = ("*.safetensors", "*.bin")


def identity(config: TrainConfig, compute: Compute) -> dict[str, Any]:
    """Everything that the samples depend on, as plain JSON."""
    model, data = config.actor_rollout_ref.model, config.data
    folders = [Path(path) for path in (model.path, model.lora_adapter_path) if path is not None]
    files = [path for folder in folders for pattern in WEIGHTS for path in sorted(folder.glob(pattern))]
    stored = stored_tree(config)
    reward = stored["reward"]
    for name in ("num_workers", "reward_kwargs", "max_failed_share"):  # none changes a raw verdict
        del reward[name]
    described = {
        "model": stored["actor_rollout_ref"]["model"],
        "weights": {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in files},
        "data": {
            name: name if name.startswith(PREFIX) else sha256_of(Path(name).expanduser())
            for name in data.val_files
        },
        "prompts": {
            "max_samples": data.val_max_samples,
            "prompt_key": data.prompt_key,
            "reward_fn_key": data.reward_fn_key,
            "max_prompt_length": data.max_prompt_length,
            "filter_overlong_prompts": data.filter_overlong_prompts,
            "apply_chat_template_kwargs": stored["data"]["apply_chat_template_kwargs"],
        },
        "max_tokens": data.max_response_length,
        "sampling": asdict(validation_sampling(config)),
        "reward": reward,
        "compute": {"device": compute.device.type, "dtype": str(compute.dtype).removeprefix("torch.")},
    }
    return json.loads(json.dumps(described))


class EvalFolder:
    """One evaluation on disk, held by one process at a time."""

    def __init__(self, path: Path, chunk: int, n: int, prompts: int) -> None:
        self.path = path
        self.samples_file = path / "samples.jsonl"
        self.summary_file = path / "summary.json"
        self._settings_file = path / "settings.json"
        self._partial = path / ".samples.jsonl.partial"
        self._chunk, self._n, self._prompts = chunk, n, prompts
        self._lock: IO[str] | None = None
        self._out: IO[str] | None = None

    def open(self, settings: dict[str, Any], overwrite: bool) -> list[Sample]:
        """Take the folder and return the samples that are there already: none, some chunks, or all."""
        elsewhere = "Choose another --out."
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArcherError(f"{self.path} cannot be written: {error.strerror}. {elsewhere}") from error
        refusal = f"Another process is evaluating into {self.path}. {elsewhere}"
        self._lock = lock(self.path / ".lock", refusal)
        if overwrite:
            for file in (self.summary_file, self.samples_file, self._partial, self._settings_file):
                plain_file(file).unlink(missing_ok=True)
            if (self.path / VALIDATION).is_dir() and not (self.path / VALIDATION).is_symlink():
                shutil.rmtree(self.path / VALIDATION)
        if self._settings_file.is_file():
            self._check(settings)
        elif any(not entry.name.startswith(".") for entry in self.path.iterdir()):
            raise ArcherError(f"{self.path} holds files that are no evaluation. {elsewhere}")
        write_atomically(self._settings_file, json.dumps(settings, indent=2) + "\n", mode=PRIVATE)
        if self.summary_file.is_file() and self.samples_file.is_file():
            return [Sample.from_line(line) for line in self.samples_file.read_bytes().splitlines()]
        self.summary_file.unlink(missing_ok=True)  # its samples are gone
        # a kill between the two last steps leaves samples without a summary: they are a whole partial
        if self.samples_file.is_file():
            self.samples_file.replace(self._partial)
        samples = self._whole_chunks()
        self._out = append_to(self._partial)
        return samples

    def append(self, samples: Sequence[Sample]) -> None:
        """Add a chunk; once this returns, a kill does not lose it."""
        assert self._out is not None
        self._out.write("".join(sample.to_line() for sample in samples))
        self._out.flush()
        os.fsync(self._out.fileno())

    def finish(self, summary: dict[str, Any]) -> None:
        """All chunks are there: give the samples their name and write the figures."""
        assert self._out is not None
        self._out.close()
        put_in_place(self._partial, self.samples_file)
        write_atomically(self.summary_file, json.dumps(summary, indent=2) + "\n")

    def close(self) -> None:
        """Let another process have the folder."""
        for file in (self._out, self._lock):
            if file is not None:
                file.close()
        self._out = self._lock = None

    def _check(self, settings: dict[str, Any]) -> None:
        theirs, ours = flat(json.loads(self._settings_file.read_text())), flat(settings)
        different = [
            f"  {key}: {theirs.get(key)!r} there, {ours.get(key)!r} now"
            for key in sorted(theirs.keys() | ours.keys())
            if theirs.get(key) != ours.get(key)
        ]
        if different:
            raise ArcherError(
                f"{self.path} holds another evaluation:\n"
                + "\n".join(different)
                + "\nChoose another --out, or --overwrite to replace it."
            )

    def _whole_chunks(self) -> list[Sample]:
        """Read the partial file and cut off what a kill left behind its last whole chunk."""
        if not self._partial.is_file():
            return []
        lines = self._partial.read_bytes().split(b"\n")[:-1]  # the last one has no end
        prompts = len(lines) // self._n
        whole = prompts if prompts >= self._prompts else prompts - prompts % self._chunk
        kept = lines[: whole * self._n]
        with self._partial.open("r+b") as file:
            file.truncate(sum(len(line) + 1 for line in kept))
        return [Sample.from_line(line) for line in kept]
