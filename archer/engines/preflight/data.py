"""Prompts before a run: files, the schema of their rows, rewards that know them, lengths."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from archer.config.root import TrainConfig
from archer.data.builtin import PREFIX
from archer.data.files import Row, read_rows
from archer.data.prepare.catalogue import ALIASES, DATA_SETS
from archer.data.prompts import PromptDataset, messages_of, truth_of
from archer.data.sampler import PromptSampler
from archer.engines.local.requirements import load_dataset, reward_config
from archer.engines.preflight.finding import Finding, as_problem, note, ok, problem
from archer.errors import ArcherError
from archer.rewards.scorer import RewardScorer


def prompt_files(config: TrainConfig) -> dict[str, tuple[str, ...]]:
    """The files of each key that names some."""
    named = {"data.train_files": config.data.train_files, "data.val_files": config.data.val_files}
    return {key: files for key, files in named.items() if files}


def max_samples(config: TrainConfig) -> dict[str, int]:
    """How many rows of each key the run uses at most; -1: all."""
    return {"data.train_files": config.data.train_max_samples, "data.val_files": config.data.val_max_samples}


def missing_files(config: TrainConfig) -> list[Finding]:
    """Name every file that is not there, and how to make it."""
    return [
        problem(key, f"{file} does not exist (relative paths start at {Path.cwd()}).", how_to_make(file))
        for key, files in prompt_files(config).items()
        for file in files
        if not file.startswith(PREFIX) and not Path(file).expanduser().exists()
    ]


def how_to_make(file: str) -> str:
    """The command that prepares a file by the name that `archer data prepare` would give it."""
    name, _, split = Path(file).stem.rpartition("-")
    found = DATA_SETS.get(ALIASES.get(name, name))
    if Path(file).suffix != ".parquet" or found is None:
        return "Check the name; `archer data prepare` makes files of public data sets (docs/recipes.md)."
    splits = found.hub.splits if found.hub is not None else ()
    own = found.hub is not None and split == found.split  # whatever the hub calls that split
    if not own and split not in splits:
        return f"docs/recipes.md says where its rows come from; `archer data prepare {name} FILE` makes it."
    option = "" if own else f" --split {split}"
    target = "" if Path(file) == Path("data") / Path(file).name else f" --out {file}"
    return f"Make it: archer data prepare {found.name}{option}{target}"


def check_rows(config: TrainConfig) -> list[Finding]:
    """Check the schema of every row and that a reward knows it; no tokenizer is needed."""
    found: list[Finding] = []
    scorer: RewardScorer | None = None
    with as_problem("rewards", found):
        scorer = RewardScorer(reward_config(config))
    if scorer is None:
        return found
    with scorer:
        for key, files in prompt_files(config).items():
            try:
                rows = [row for file in files if _is_there(file) for row in read_rows(file)]
                if rows:
                    sources = _judged(config, scorer, rows)
                    found.append(
                        ok(
                            key,
                            f"{len(rows):,} rows in verl's schema: {sources}{_used(config, key, len(rows))}",
                        )
                    )
            except ArcherError as error:
                found.append(problem(key, str(error)))
    return found


def _used(config: TrainConfig, key: str, rows: int) -> str:
    most = max_samples(config)[key]
    name = key.removesuffix("_files")
    return f"; the run uses {most:,} of them ({name}_max_samples)" if 0 < most < rows else ""


def _is_there(file: str) -> bool:
    return file.startswith(PREFIX) or Path(file).expanduser().exists()


def _judged(config: TrainConfig, scorer: RewardScorer, rows: Sequence[Row]) -> str:
    """Check rows one by one; return how many of which data source there are."""
    sources: Counter[str] = Counter()
    for row in rows:
        messages_of(row, config.data.prompt_key)
        truth = truth_of(row)
        source = row.values.get(config.data.reward_fn_key)
        if not isinstance(source, str):
            raise ArcherError(
                f"{row.where}, field {config.data.reward_fn_key}: found {source!r}, expected the name that "
                "chooses the reward."
            )
        try:
            scorer.check(source, truth)
        except ArcherError as error:
            raise ArcherError(f"{row.where}: {error}") from error
        sources[source] += 1
    return ", ".join(f"{source} {count:,}" for source, count in sources.most_common())


def check_lengths(config: TrainConfig, tokenizer: Any) -> tuple[list[Finding], int | None]:
    """Render and count every prompt; return findings and the steps of the run where they can be known."""
    found: list[Finding] = []
    steps: int | None = None
    limits = max_samples(config)
    for key, files in prompt_files(config).items():
        with as_problem(f"prompts of {key}", found):
            prompts = load_dataset(config, tokenizer, files, limits[key])
            found.append(_lengths(config, key, prompts))
            if key == "data.train_files":
                steps = steps_of(config, len(prompts))
    return found, steps


def steps_of(config: TrainConfig, prompts: int) -> int:
    """Training steps of the run; too few prompts for a batch are refused."""
    data = config.data
    sampler = PromptSampler(prompts, data.train_batch_size, data.shuffle, data.seed)
    return config.trainer.total_training_steps or config.trainer.total_epochs * sampler.steps_per_epoch


def _lengths(config: TrainConfig, key: str, prompts: PromptDataset) -> Finding:
    lengths = [len(prompt.token_ids) for prompt in prompts]
    text = (
        f"{min(lengths):,} to {max(lengths):,} tokens, median {median(lengths):,.0f}, of at most "
        f"{config.data.max_prompt_length:,}"
    )
    if prompts.overlong:
        return note(f"prompts of {key}", f"{text}; {prompts.overlong:,} longer ones are left out")
    return ok(f"prompts of {key}", text)
