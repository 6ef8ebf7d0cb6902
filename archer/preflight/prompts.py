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
from archer.data.prompts import messages_of, truth_of
from archer.data.sampler import PromptSampler
from archer.errors import ArcherError
from archer.generation.build import PromptFiles
from archer.generation.requirements import load_dataset
from archer.preflight.report import Finding, as_problem, note, ok, problem
from archer.rewards import RewardScorer


def prompt_files(config: TrainConfig) -> dict[str, PromptFiles]:
    """The files of each key that names some, and how many of their rows the run uses."""
    data = config.data
    named = {
        "data.train_files": PromptFiles(data.train_files, data.train_max_samples),
        "data.val_files": PromptFiles(data.val_files, data.val_max_samples),
    }
    return {key: prompts for key, prompts in named.items() if prompts.files}


def missing_files(config: TrainConfig) -> list[Finding]:
    """Name every file that is not there, and how to make it."""
    return [
        problem(key, f"{file} does not exist (relative paths start at {Path.cwd()}).", how_to_make(file))
        for key, prompts in prompt_files(config).items()
        for file in prompts.files
        if not _is_there(file)
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
        scorer = RewardScorer(config.reward)
    if scorer is None:
        return found
    with scorer:
        for key, prompts in prompt_files(config).items():
            with as_problem(key, found):
                rows = [row for file in prompts.files if _is_there(file) for row in read_rows(file)]
                if rows:
                    text = f"{len(rows):,} rows in verl's schema: {_judged(config, scorer, rows)}"
                    if 0 < prompts.max_samples < len(rows):
                        setting = f"{key.removesuffix('_files')}_max_samples"
                        text += f"; the run uses {prompts.max_samples:,} of them ({setting})"
                    found.append(ok(key, text))
    return found


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
    data, trainer = config.data, config.trainer
    for key, named in prompt_files(config).items():
        subject = f"prompts of {key}"
        with as_problem(subject, found):
            prompts = load_dataset(data, tokenizer, named.files, named.max_samples)
            lengths = [len(prompt.token_ids) for prompt in prompts]
            text = (
                f"{min(lengths):,} to {max(lengths):,} tokens, median {median(lengths):,.0f}, of at most "
                f"{data.max_prompt_length:,}"
            )
            more = f"; {prompts.overlong:,} longer ones are left out"
            found.append(note(subject, text + more) if prompts.overlong else ok(subject, text))
            if key == "data.train_files":  # too few of them for a batch are refused
                sampler = PromptSampler(len(prompts), data.train_batch_size, data.shuffle, data.seed)
                steps = trainer.total_training_steps or trainer.total_epochs * sampler.steps_per_epoch
    return found, steps
