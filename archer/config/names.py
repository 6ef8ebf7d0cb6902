"""Old names of settings, of the first system and of older verl; and the name that was probably meant.

A name whose meaning is the same today is taken for the new one, with both engines. The others are refused
with what to set instead.
"""

from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from typing import Any

from archer.errors import ArcherError

OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"
CORRECTION = "algorithm.rollout_correction"
ROLLOUT = "actor_rollout_ref.rollout"
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"

RENAMED = {
    "custom_reward_function": "reward.custom_reward_function",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_kwargs.overlong_buffer_cfg": OVERLONG,
    "reward_model.overlong_buffer": OVERLONG,
    "reward.overlong_buffer": OVERLONG,
    "actor_rollout_ref.actor.optim.warmup_style": "actor_rollout_ref.actor.optim.lr_scheduler_type",
    "actor_rollout_ref.actor.tis_imp_ratio_cap": f"{CORRECTION}.rollout_is_threshold",
    "algorithm.rollout_is_threshold": f"{CORRECTION}.rollout_is_threshold",
    f"{ROLLOUT}.tensor_parallel_size": f"{ROLLOUT}.tensor_model_parallel_size",
    f"{ROLLOUT}.micro_batch_size": f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    "critic.kl_ctrl": "algorithm.kl_ctrl",
    "critic.model.fsdp_config": "critic.fsdp",
    "critic.ulysses_sequence_parallel_size": "critic.fsdp.ulysses_sequence_parallel_size",
    "critic.grad_clip": "critic.optim.clip_grad",
    "actor_rollout_ref.actor.use_torch_compile": "actor_rollout_ref.actor.fsdp_config.use_torch_compile",
    "actor_rollout_ref.ref.use_torch_compile": "actor_rollout_ref.ref.fsdp_config.use_torch_compile",
    "trainer.val_generations_to_log_to_wandb": "trainer.log_val_generations",
    "ray_init": "ray_kwargs.ray_init",
}
"""Settings and groups of settings that have another name today, and the same meaning."""

NOTHING_ASKED: dict[str, tuple[Any, ...]] = {
    "reward_model.enable": (None, False),
    "reward_model.reward_manager": (None, "naive", "dapo"),
    "reward_model.launch_reward_fn_async": (None, False),
    "reward.reward_manager.name": ("naive", "dapo"),
    f"{OVERLONG}.log": (None, False),
}
"""Settings of older verl with the values at which they ask for what Archer does anyway."""

GONE = {
    "*use_archer_policy_loss": f"set {LOSS}=dual_token",
    "*use_dynamic_clip": f"set {LOSS}=dual_token (low_ and high_entropy_clip_ratio_*) or aspo",
    "*use_dual_clip": "set actor_rollout_ref.actor.clip_ratio_c",
    "*enable_overlong_filter": f"such responses are not masked: set {OVERLONG}.enable=True and .len",
    "*overlong_buffer*.log": "what is taken off is always logged: leave it out",
    "*rejection_sample": "set algorithm.filter_groups.enable=True",
    "*rejection_sample_multiplier": "set data.gen_batch_size and algorithm.filter_groups.max_num_gen_batches",
    "engine.compile_decoding": f"set {ROLLOUT}.enforce_eager=True to decode without CUDA graphs",
    "*atomic_write": "files are always written whole: leave it out",
    "*update_summary_every": "the trace's summary is written with every step: leave it out",
    "INFLUENCE_TOTAL_STEPS": "set trainer.total_training_steps",
    "TOTAL_STEPS": "set trainer.total_training_steps",
    "trainer.remove_previous_ckpt_in_save": "set trainer.max_actor_ckpt_to_keep=1",
    "*.fsdp_config.grad_offload": "gradients are offloaded with fsdp_config.param_offload",
    "algorithm.rollout_is": f"set {CORRECTION}.rollout_is=token or sequence",
    "reward_model.reward_manager": "responses are judged by Archer: set reward.custom_reward_function.path",
    "reward_model.reward_kwargs.max_resp_len": "set data.max_response_length",
    "reward_model.launch_reward_fn_async": "responses are judged while others are sampled: leave it out",
    "reward_model.sandbox_fusion*": "programs run in Archer's own sandbox: see reward.code.*",
    "reward_model.*reward_loop*": "responses are judged by Archer: set reward.custom_reward_function.path",
    "reward_model*": "Archer asks no reward model: call your judge in reward.custom_reward_function.path",
    "sandbox_fusion*": "programs run in Archer's own sandbox: see reward.code.*",
}
"""Patterns of settings that are gone or mean something else today, and what to do instead."""


def renamed(key: str) -> str:
    """Today's name of a setting or of a group of settings; the same where it has not changed."""
    for old, new in RENAMED.items():
        if key == old or key.startswith(f"{old}."):
            return new + key[len(old) :]
    return key


def advice(key: str, known: Iterable[str]) -> str:
    """What to say of a name that does not exist, after a space: the way out, or what was probably meant."""
    instead = next((text for pattern, text in GONE.items() if fnmatchcase(key, pattern)), None)
    if instead is not None:
        return f" It is an old name: {instead}."
    meant = nearest(key, known)
    return "" if meant is None else f" Did you mean {meant}?"


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `key` as a whole: section by section, letter by letter."""
    names = list(known)
    ends = [name for name in names if name.endswith(f".{key}")]
    if ends:
        return min(ends, key=len)
    best, score = None, 0.0
    words, last = key.split("."), key.rpartition(".")[2]
    matcher = SequenceMatcher(b=last)
    for name in names:
        matcher.set_seq1(name.rpartition(".")[2])
        if matcher.quick_ratio() < 0.7 or (word := matcher.ratio()) < 0.7:
            continue
        path = name.split(".")
        sections = SequenceMatcher(None, words[:-1], path[:-1]).ratio() if len(words) > 1 else 0.0
        likeness = (
            2 * word + sections + 0.5 * (words[0] == path[0]) + SequenceMatcher(None, key, name).ratio()
        )
        if likeness > score:
            best, score = name, likeness
    return _beneath(words, names) or best


def _beneath(words: list[str], names: list[str]) -> str | None:
    """A known name whose last word is misspelt above the end of a key: one that takes any key beneath it."""
    for count in range(len(words) - 1, 1, -1):
        section, name = words[: count - 1], words[count - 1]
        beside = [each for each in names if each.split(".")[:-1] == section]
        likeness, best = max(((_likeness(name, each), each) for each in beside), default=(0.0, ""))
        if likeness >= 0.8:
            return ".".join([best, *words[count:]])
    return None


def _likeness(word: str, name: str) -> float:
    return SequenceMatcher(None, word, name.rpartition(".")[2]).ratio()


def with_todays_names(tree: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a composed tree with old names replaced; what asks for nothing is left out."""
    result = _copied(tree)
    for old, new in RENAMED.items():
        section, name = _parent(result, old)
        if name not in section:
            continue
        for key, value in _leaves(section.pop(name), new):
            there, default = _get(result, key), _get(defaults, key)
            if there not in (None, default, value):
                raise ArcherError(
                    f"{old} is the old name of {new}, and {key} is given, too: leave out the former."
                )
            inner, last = _parent(result, key, make=True)
            inner[last] = value
    for key, values in NOTHING_ASKED.items():
        section, name = _parent(result, key)
        if name in section and section[name] in values:
            del section[name]
            above, last = _parent(result, key.rpartition(".")[0])
            if not section and _get(defaults, key.rpartition(".")[0]) is None:
                above.pop(last, None)  # a section that Archer does not have, and nothing is left of
    return {name: value for name, value in result.items() if value != {} or tree.get(name) == {}}


def _copied(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _leaves(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{prefix}.{key}")
    else:
        yield prefix, value


def _parent(tree: dict[str, Any], key: str, make: bool = False) -> tuple[dict[str, Any], str]:
    """The section that holds a key, and the key's name in it; an empty one where there is none."""
    *sections, name = key.split(".")
    for section in sections:
        inner = tree.setdefault(section, {}) if make else tree.get(section)
        if not isinstance(inner, dict):
            return {}, name
        tree = inner
    return tree, name


def _get(tree: Mapping[str, Any], key: str) -> Any:
    for name in key.split("."):
        if not isinstance(tree, Mapping) or name not in tree:
            return None
        tree = tree[name]
    return tree
