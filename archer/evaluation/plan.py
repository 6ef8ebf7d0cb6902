"""From the command's options to a configuration: a run's own settings, changed by what the user gave.

A checkpoint of a run is evaluated as the run validates: same prompts, lengths, sampling and seed. So a plain
`archer eval --model RUN/checkpoints/global_step_N` gives the number that training logged at that step.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from archer.config.parse import defaults, parse
from archer.config.root import TrainConfig
from archer.config.rules import check
from archer.data.builtin import PREFIX
from archer.errors import ArcherError
from archer.evaluation.choice import ModelChoice, model_settings

KEPT = ("data", "actor_rollout_ref.model", "actor_rollout_ref.rollout", "reward", "engine")
DROPPED = {  # of those: what only training uses, whose rules need not hold here
    "data": ("train_files", "train_batch_size", "gen_batch_size"),
    "reward": ("reward_kwargs",),
}
_VAL = "actor_rollout_ref.rollout.val_kwargs"


@dataclass(frozen=True)
class EvalOptions:
    """What the user gave on the command line; None: not given."""

    data: tuple[str, ...] = ()
    n: int | None = None
    temperature: float | None = None  # 0: greedy
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    batch: int | None = None
    limit: int | None = None
    device: str | None = None
    dtype: str | None = None
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class EvalPlan:
    """One evaluation, ready to be carried out."""

    model: ModelChoice
    config: TrainConfig
    fit_prompts: bool  # no limit was set: prompts may be as long as they are
    label: str  # names the data and n in folders

    @property
    def folder(self) -> Path:
        """Where the evaluation is written unless the user says otherwise."""
        return (self.model.run or Path("output")) / "evaluation" / self.label / self.model.name


def make_plan(model: ModelChoice, options: EvalOptions) -> EvalPlan:
    """Return the checked plan of evaluating `model`."""
    tree = OmegaConf.create(defaults(TrainConfig)) if model.run is None else _run_tree(model.run)
    changes = {**_model(model), "trainer.val_only": True, **_given(options)}
    if model.run is None:
        changes.setdefault("data.max_response_length", 1024)
    own = dict(_split(override) for override in options.overrides)
    try:
        for key, value in (changes | own).items():
            OmegaConf.update(tree, key, value, force_add=True)
        resolved: Any = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise ArcherError(f"The settings could not be understood: {error}") from error
    _choose_sampling(resolved, options)
    if not resolved["data"]["val_files"]:
        raise ArcherError(
            "There is nothing to evaluate on: give --data FILE (JSON, JSONL or Parquet in verl's schema; "
            "`archer data prepare` makes such files)."
            + ("" if model.run is None else f" The run {model.run} has no data.val_files.")
        )
    config = parse(TrainConfig, resolved)
    check(config)
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    if sampling.n > 1 and not sampling.do_sample:
        raise ArcherError(
            f"Greedy decoding gives the same response {sampling.n} times: use --n 1, or a --temperature "
            "above 0."
        )
    fit = model.run is None and "data.max_prompt_length" not in own
    names = [name.removeprefix(PREFIX).partition("?")[0].replace("/", "-") for name in options.data]
    label = "+".join(Path(name).stem for name in names) or "validation"
    return EvalPlan(model, config, fit, f"{label}@{sampling.n}")


def _model(model: ModelChoice) -> dict[str, Any]:
    """The settings that load the model; a checkpoint of a run has its tokenizer, too."""
    section = "actor_rollout_ref.model"
    if model.adapter is None:
        whole: dict[str, Any] = {"path": model.path, "lora_rank": 0, "lora_adapter_path": None}
        if model.run is not None:
            whole["tokenizer_path"] = None
        return {f"{section}.{name}": value for name, value in whole.items()}
    chosen = model_settings(model)
    names = ("path", "tokenizer_path", "lora_rank", "lora_adapter_path")
    return {f"{section}.{name}": getattr(chosen, name) for name in names}


def _run_tree(run: Path) -> DictConfig:
    """The part of a run's configuration that its validation depends on."""
    file = run / "config.yaml"
    tree = OmegaConf.create({})
    try:
        stored = OmegaConf.load(file)
        for key in KEPT:
            OmegaConf.update(tree, key, OmegaConf.select(stored, key, throw_on_missing=True))
        for section, names in DROPPED.items():
            for name in names:
                tree[section].pop(name, None)
        if tree.engine.name != "local":  # evaluation is this process's work, whatever trained
            del tree.engine
    except (OSError, ValueError, AttributeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ArcherError(f"{file} cannot be read as the configuration of a run: {error}") from error
    return tree


def _given(options: EvalOptions) -> dict[str, Any]:
    given: dict[str, Any] = {
        f"{_VAL}.n": options.n,
        f"{_VAL}.top_p": options.top_p,
        f"{_VAL}.top_k": options.top_k,
        "data.max_response_length": options.max_tokens,
        "actor_rollout_ref.rollout.seed": options.seed,
        "actor_rollout_ref.rollout.max_num_seqs": options.batch,
        "data.val_max_samples": options.limit,
        "engine.device": options.device,
        "engine.dtype": options.dtype,
    }
    found = {key: value for key, value in given.items() if value is not None}
    if options.data:
        found = {"data.val_files": list(options.data), "data.val_max_samples": -1} | found
    return found


def _choose_sampling(tree: dict[str, Any], options: EvalOptions) -> None:
    """Greedy or not: as --temperature says; else as the run; several responses are never greedy unasked."""
    chosen = tree["actor_rollout_ref"]["rollout"]["val_kwargs"]
    if options.temperature is not None:
        chosen["do_sample"] = options.temperature > 0
        chosen["temperature"] = options.temperature or 1.0
    elif options.n is not None and options.n > 1:
        chosen["do_sample"] = True


def _split(override: str) -> tuple[str, Any]:
    key, sign, value = override.lstrip("+").partition("=")
    if not sign:
        raise ArcherError(f"{override!r} is not an override: write key=value, e.g. reward.num_workers=4")
    return key, yaml.safe_load(value)
