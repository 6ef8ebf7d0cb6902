"""What TRL's trainer knows of its responses, in Archer's terms."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archer.errors import ArcherError
from archer.influence import Layout
from archer.integrations.grpo import RunFacts, masked_layout
from archer.integrations.sampled import SampledResponses, Verdicts
from archer.integrations.trl_versions import installed_trl

TRUTHS = ("ground_truth", "answer", "solution")
PLAIN = ("NO", "MULTI_GPU", "MULTI_CPU")
"""Ways of distributing in which every process holds the whole model."""


def run_facts(trainer: Any) -> RunFacts:
    """What it says of itself when it begins."""
    args, accelerator = trainer.args, trainer.accelerator
    several = accelerator.num_processes > 1

    def gather(values: Tensor) -> Tensor:
        whole = accelerator.pad_across_processes(values.to(torch.float32), dim=1)
        return accelerator.gather(whole).to(values.dtype)

    return RunFacts(
        model=trainer.model,
        tokenizer=trainer.processing_class,
        output_dir=Path(args.output_dir),
        metadata={
            "project": "trl",
            "experiment": args.run_name or Path(args.output_dir).name,
            "model": str(trainer.model.config.name_or_path),
            "temperature": args.temperature,
            "trainer": f"trl {installed_trl()}",
        },
        temperature=args.temperature,
        micro_batches=args.steps_per_generation,
        group_size=trainer.num_generations,
        rank=accelerator.process_index,
        world=accelerator.num_processes,
        resumed_at=trainer.state.global_step,
        gather=gather if several else None,
    )


def check_distribution(trainer: Any) -> None:
    """Refuse models that no process holds whole."""
    kind = trainer.accelerator.distributed_type.value
    if kind not in PLAIN:
        raise ArcherError(
            f"archer.integrations.trl reads models that every process holds whole (one process, or DDP), not "
            f"those that {kind} shards; engine=verl traces sharded models (FSDP2)"
        )


def check_credit(trainer: Any) -> None:
    """Refuse a loss in which a weight does not reach its token."""
    mode = trainer.archer.options.credit.mode
    if mode != "none" and trainer.args.importance_sampling_level == "sequence":
        raise ArcherError(
            f"token credit ({mode}) cannot reach single tokens under importance_sampling_level='sequence': a "
            "response has one ratio there, and all its tokens the same gradient; set 'token', or leave "
            "credit out"
        )


def accepting(trainer: Any) -> int:
    """Which reward function says what is right."""
    names, chosen = list(trainer.reward_func_names), trainer.archer.options.accepted_by
    if chosen is None and len(names) == 1:
        return 0
    if chosen not in names:
        raise ArcherError(
            f"Tracing(accepted_by={chosen!r}): name the reward function whose value says what is right, one "
            f"of {', '.join(names)}"
        )
    return names.index(chosen)


def verdicts_of(trainer: Any, rewards: Tensor, output: dict[str, Any]) -> Verdicts:
    """rewards: [N, functions], NaN where one had no opinion."""
    weights = trainer.reward_weights.to(rewards)
    names, judged = list(trainer.reward_func_names), ~rewards.isnan().all(1)
    deciding = rewards[:, accepting(trainer)]
    mask = loss_mask(output)
    learnt = trainer.accelerator.gather(mask.any(1))
    return Verdicts(
        accepted=(deciding > trainer.archer.options.accepted_above).cpu(),
        judged=(judged & ~deciding.isnan()).cpu(),
        learnt=learnt.cpu(),
        rewards=torch.where(judged, (rewards * weights).nansum(1), torch.nan).cpu(),
        values={name: rewards[:, i].tolist() for i, name in enumerate(names)} if len(names) > 1 else {},
        group_size=trainer.num_generations,
    )


def loss_mask(output: dict[str, Any]) -> Tensor:
    """[n, C] bool: the tokens that are learnt from."""
    mask = output["completion_mask"].bool()
    return mask & output["tool_mask"].bool() if "tool_mask" in output else mask


def generation_of(
    trainer: Any,
    inputs: list[dict[str, Any]],
    output: dict[str, Any],
    verdicts: Verdicts,
    step: int,
    offset: int,
    selected: frozenset[int],
) -> SampledResponses:
    """The responses of this process, as TRL padded them."""
    mask = loss_mask(output)
    counts = mask.sum(1)
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    lengths = (mask * places).amax(1)
    prompts = [
        ids[there.bool()].tolist()
        for ids, there in zip(output["prompt_ids"].cpu(), output["prompt_mask"].cpu(), strict=True)
    ]
    column = trainer.archer.options.truth_column
    column = column or next((name for name in TRUTHS if name in inputs[0]), None)
    tokens, ends = output["completion_ids"].cpu(), ends_of(trainer)
    ended = [
        bool(there.any()) and int(line[there.nonzero()[-1]]) in ends
        for line, there in zip(tokens, output["completion_mask"].cpu(), strict=True)
    ]
    return SampledResponses(
        step=step,
        offset=offset,
        first=trainer.accelerator.process_index * len(prompts),
        verdicts=verdicts,
        prompts=prompts,
        tokens=tokens,
        mask=mask,
        lengths=lengths.tolist(),
        whole=bool((counts == lengths).all()),
        advantages=output["advantages"],
        finished=ended,
        sources=[str(given.get("data_source", "")) for given in inputs],
        truths=[None if column is None else given.get(column) for given in inputs],
        selected=selected,
    )


def ends_of(trainer: Any) -> set[int]:
    """Tokens with which a response ends by itself."""
    given = trainer.model.generation_config.eos_token_id
    ends = set(given) if isinstance(given, list) else {given}
    tokenizer = trainer.processing_class
    tokenizer = tokenizer.tokenizer if hasattr(tokenizer, "tokenizer") else tokenizer
    return ends | {tokenizer.eos_token_id, tokenizer.pad_token_id}


def credit_ahead(
    trainer: Any,
    generation: SampledResponses,
    output: dict[str, Any],
    seen: tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None] | None,
) -> None:
    """Make weights before the update, where its own forward cannot."""
    credit = trainer.archer.credit
    if seen is None and credit.in_update(trainer.args.steps_per_generation):
        return
    if "pixel_values" in output and (seen is None or credit.tracer is not None):
        raise ArcherError("this mode of token credit needs a forward of its own, which knows no images")
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
    attention = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)
    prompt, keep = output["prompt_ids"].shape[1], output["completion_ids"].shape[1]
    rows = trainer.args.per_device_train_batch_size

    def forward(places: list[int]) -> tuple[Tensor, Tensor]:
        found = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids[places], attention[places], keep, compute_entropy=True
        )
        return found[0], found[1]

    if credit.tracer is not None:

        def layout(places: list[int], names: list[int]) -> Layout:
            return masked_layout(names, generation.mask[places], prompt - 1, prompt + keep)

        log_probs, entropy = credit.pass_of_its_own(generation, forward, layout, rows)
        seen = (log_probs, entropy, None)
    elif seen is None:
        with torch.no_grad():
            found, factors = trainer._read(
                credit.reader,
                trainer.model,
                (ids, attention, keep),
                {"batch_size": rows, "compute_entropy": True},
            )
        seen = (found[0], found[1], factors)
    credit.ahead(generation, *seen)
