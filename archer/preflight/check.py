"""Everything about a run that can be checked without training.

`full_check` is what `archer train --dry-run` prints; `refuse_early` is the part of it that takes no time and
precedes every run, so that one that cannot start here says so at once, in the same sentences.
"""

import fcntl
import os
from importlib.util import find_spec
from pathlib import Path

from archer.config.root import TrainConfig
from archer.engines.verl.checkpoints import VerlRunFolder
from archer.engines.verl.settings import verl_settings
from archer.errors import ArcherError
from archer.generation.model import load_tokenizer
from archer.generation.requirements import check_cache, check_context
from archer.preflight.influence import check_influence
from archer.preflight.machine import (
    check_device,
    check_disk,
    check_installed,
    check_memory,
    check_trackers,
    existing,
)
from archer.preflight.memory import check_token_kernel
from archer.preflight.model import ModelFacts, check_weights, read_model
from archer.preflight.prompts import check_lengths, check_rows, missing_files
from archer.preflight.report import Finding, as_problem, note, ok, problem, problems
from archer.runs.folder import RunFolder
from archer.training.credit import TokenCredit


def refuse_early(config: TrainConfig) -> Finding | None:
    """Raise one ArcherError with all that keeps the run from starting here and is found in a moment.

    Too little memory is returned instead: the estimate takes every response to be as long as it may get, and
    a run of shorter ones may well succeed.
    """
    found, facts = quick_check(config)
    wrong = problems(found)
    if len(wrong) == 1:
        raise ArcherError(wrong[0].sentence)
    if wrong:
        lines = "\n".join(f"  {finding.subject}: {finding.sentence}" for finding in wrong)
        raise ArcherError(f"This run cannot start here:\n{lines}")
    assert facts is not None, "a model that cannot be read is a problem"
    memory = check_memory(config, facts)
    return memory if memory.level == "problem" else None


def quick_check(config: TrainConfig) -> tuple[list[Finding], ModelFacts | None]:
    """Versions, device, model and files; also the model, where its configuration could be read."""
    found = [check_installed(config), check_device(config), *check_trackers(config)]
    facts: ModelFacts | None = None
    with as_problem("model", found):
        facts = read_model(config.actor_rollout_ref.model)
        shape = facts.shape
        text = (
            f"{facts.name} ({facts.config.model_type}): {shape.layers} layers of {shape.hidden:,}, "
            f"vocabulary {shape.vocabulary:,}"
        )
        if facts.adapters is not None:
            text += f"; LoRA adapters of {facts.adapters.trained / 1e6:,.2f} M parameters"
        found += [ok("model", text), check_weights(facts)]
    return [*found, *missing_files(config)], facts


def full_check(config: TrainConfig) -> list[Finding]:
    """Everything that can be checked; nothing is written and no weights are loaded."""
    found, facts = quick_check(config)
    if config.engine.name == "verl" and facts is not None and find_spec("verl") is not None:
        with as_problem("configuration", found):  # settings verl does not have, or cannot be traced with
            verl_settings(config)
    found += check_rows(config)
    credit = TokenCredit(config.algorithm.token_credit, config.actor_rollout_ref.rollout.seed)
    if credit.active:
        report = note if credit.scores is not None and credit.scores.of == "modules" else ok
        found.append(report("token credit", credit.describe().removeprefix("token credit: ")))
    steps = config.trainer.total_training_steps
    if facts is not None:
        more, counted = _with_model(config, facts)
        said = {finding.text for finding in problems(found)}
        found += [finding for finding in more if finding.text not in said]  # a bad row is met twice
        steps = counted or steps
    found.append(_folder(config, steps))
    if facts is not None:
        influence = check_influence(config, facts)
        found += influence
        if not problems(influence):  # otherwise there is nothing to estimate
            found += [check_memory(config, facts), *check_token_kernel(config, facts)]
        found += [check_disk(config, facts, steps)] if steps is not None else []
    return found


def _with_model(config: TrainConfig, facts: ModelFacts) -> tuple[list[Finding], int | None]:
    """Tokenizer, prompt lengths and what the model can do; also the steps of the run."""
    found: list[Finding] = []
    with as_problem("model", found):
        longest = config.data.max_prompt_length + config.data.max_response_length
        check_context(facts.skeleton, longest, config.actor_rollout_ref.model.path)
        if config.engine.name == "local":
            check_cache(facts.skeleton)
    tokenizer = None
    with as_problem("tokenizer", found):
        tokenizer = load_tokenizer(config.actor_rollout_ref.model)
        found.append(ok("tokenizer", f"{len(tokenizer):,} tokens, with a chat template"))
    if tokenizer is None or missing_files(config):
        what = "the tokenizer" if tokenizer is None else "all files"
        return [*found, note("prompts", f"lengths were not checked without {what}")], None
    more, steps = check_lengths(config, tokenizer)
    return [*found, *more], steps


def _folder(config: TrainConfig, steps: int | None) -> Finding:
    """Find out whether the run folder is free, or this run's to resume."""
    kind = VerlRunFolder if config.engine.name == "verl" else RunFolder
    subject, path = "run folder", config.run_dir
    try:
        start = kind(config).inspect()
    except ArcherError as error:
        return problem(subject, str(error))
    if not os.access(existing(path), os.W_OK):
        return problem(subject, f"{path} cannot be written.", "Set trainer.default_local_dir.")
    if _in_use(path / ".lock"):
        return problem(
            subject, f"Another process is training in {path}.", "Choose another trainer.experiment_name."
        )
    if start is None:
        return ok(subject, f"{path}, a new run")
    if steps is not None and start.step >= steps:
        return note(subject, f"{path} has all {steps:,} steps already", "Raise trainer.total_training_steps.")
    return ok(subject, f"{path}, resumes from step {start.step:,}")


def _in_use(lock: Path) -> bool:
    if not lock.is_file():
        return False
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
