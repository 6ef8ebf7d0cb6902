"""A user's own loss, advantage or KL estimator: `path/to/file.py:function` in place of a name."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from archer.algorithms.advantages.base import AdvantageInputs, bound_advantage
from archer.algorithms.kl import kl_estimator
from archer.algorithms.policy_losses.base import LossInputs, LossOutputs, bound_loss
from archer.cli import app
from archer.config import TrainConfig, compose
from archer.config.actor import actor_config
from archer.config.compose import to_yaml
from archer.config.notes import idle_notes
from archer.config.parse import key_names, leaves, parse
from archer.errors import ArcherError
from archer.plugins import load_function

EXAMPLES = Path(__file__).parents[2] / "examples"
ACTOR = "actor_rollout_ref.actor"
MODE, ESTIMATOR, KL = f"{ACTOR}.policy_loss.loss_mode", "algorithm.adv_estimator", f"{ACTOR}.kl_loss_type"
SPO = f"{MODE}={EXAMPLES}/my_loss.py:spo"
BATCH_STD = f"{ESTIMATOR}={EXAMPLES}/my_advantage.py:batch_std"

SAME_AS_BUILT_IN = """
from archer.algorithms.advantages.base import AdvantageInputs
from archer.algorithms.advantages.group_relative import GrpoSettings, grpo
from archer.algorithms.kl import k3
from archer.algorithms.policy_losses.base import ClipSettings
from archer.algorithms.policy_losses.ppo_clip import ppo_clip
from archer.plugins import reads

calls = {"loss": 0, "advantage": 0, "kl": 0}


@reads(ClipSettings)
def loss(inputs, settings):
    calls["loss"] += 1
    return ppo_clip(inputs, settings)


@reads(GrpoSettings, compares_group=True)
def advantage(inputs, settings):
    calls["advantage"] += 1
    return grpo(inputs, settings)


def kl(log_probs, ref_log_probs):
    calls["kl"] += 1
    return k3(log_probs, ref_log_probs)
"""
HEAD = """
from dataclasses import dataclass
from archer.plugins import reads
from archer.settings import Section, knob
"""
SMALL = (
    "data.train_batch_size=4",
    "data.val_max_samples=6",
    f"{ACTOR}.ppo_mini_batch_size=2",
    f"{ACTOR}.ppo_epochs=2",
    "actor_rollout_ref.rollout.n=4",
    "trainer.total_training_steps=2",
    "trainer.save_freq=1",
    "engine.threads=1",
    "engine.device=cpu",
)


@pytest.fixture
def write(tmp_path) -> Callable[[str, str], Path]:
    """Write a user's file and return its path."""

    def write(text: str, name: str = "mine.py") -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ArcherError) as error:
        compose(list(overrides))
    return str(error.value).splitlines()[1:]


def loss_inputs(ratio: float, advantage: float) -> tuple[LossInputs, Tensor]:
    log_probs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    one = torch.ones_like(log_probs)
    return LossInputs(log_probs, 0 * one, advantage * one, one), log_probs


# --- they compose


def test_the_examples_compose_with_their_settings_at_the_defaults():
    config = compose([SPO, BATCH_STD])
    assert config.actor_rollout_ref.actor.spo_epsilon == 0.2
    assert config.algorithm.std_floor == 0.05


def test_their_settings_are_taken_from_the_command_line_and_survive_yaml():
    config = compose([SPO, BATCH_STD, f"{ACTOR}.spo_epsilon=0.3", "+algorithm.std_floor=1"])
    assert config.actor_rollout_ref.actor.spo_epsilon == 0.3
    assert config.algorithm.std_floor == 1.0
    assert parse(TrainConfig, OmegaConf.to_container(OmegaConf.create(to_yaml(config)))) == config
    names = {name for name, _, _ in leaves(config)}
    assert {f"{ACTOR}.spo_epsilon", "algorithm.std_floor"} <= names


def test_engine_verl_takes_them_for_settings_of_archers_own():
    config = compose(["engine=verl", SPO, BATCH_STD, f"{ACTOR}.spo_epsilon=0.3", "algorithm.std_floor=1"])
    assert config.engine.verl == {}
    assert config.actor_rollout_ref.actor.spo_epsilon == 0.3


def test_a_recipe_names_them_too(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [arithmetic, _self_]\n"
        f"actor_rollout_ref: {{actor: {{policy_loss: {{loss_mode: '{EXAMPLES}/my_loss.py:spo'}}, "
        "spo_epsilon: 0.4}}\n"
    )
    assert compose(["recipe=mine"], tmp_path).actor_rollout_ref.actor.spo_epsilon == 0.4


def test_a_path_is_taken_from_the_folder_of_the_command_and_from_home(write, tmp_path, monkeypatch):
    write("def same(log_probs, ref_log_probs):\n    return log_probs - ref_log_probs\n", "here/kl.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("here/kl.py:same", "~/here/kl.py:same"):  # a ~ must be quoted, as everywhere with Hydra
        assert compose([f"{KL}='{name}'"]).actor_rollout_ref.actor.kl_loss_type == name


def test_a_kl_estimator_of_ones_own_serves_the_loss_and_the_reward(write):
    file = write("def twice(log_probs, ref_log_probs):\n    return 2 * (log_probs - ref_log_probs)\n")
    config = compose([f"{KL}={file}:twice", f"algorithm.kl_penalty={file}:twice"])
    estimator = kl_estimator(config.actor_rollout_ref.actor.kl_loss_type)
    assert estimator(torch.tensor([3.0]), torch.tensor([1.0])).tolist() == [4.0]
    assert config.algorithm.kl_penalty == f"{file}:twice"


def test_the_kl_in_the_reward_is_verls_own_with_engine_verl(write):
    file = write("def same(log_probs, ref_log_probs):\n    return log_probs - ref_log_probs\n")
    penalty = f"algorithm.kl_penalty={file}:same"
    (problem,) = problems("engine=verl", penalty, "algorithm.use_kl_in_reward=True")
    assert f"{KL}={file}:same" in problem
    compose([penalty, "algorithm.use_kl_in_reward=True"])
    compose(["engine=verl", f"{KL}={file}:same", f"{ACTOR}.use_kl_loss=True"])


# --- what they compute


@pytest.mark.parametrize(("advantage", "best"), [(1.5, 1.3), (-1.5, 0.7)])
def test_the_example_loss_is_spo(advantage, best):
    config = compose([SPO, f"{ACTOR}.spo_epsilon=0.3"]).actor_rollout_ref.actor
    loss = bound_loss(config.policy_loss.loss_mode, config)

    def gradient(ratio: float) -> float:
        inputs, log_probs = loss_inputs(ratio, advantage)
        out = loss(inputs)
        assert isinstance(out, LossOutputs)
        plain = -(advantage * ratio - abs(advantage) * (ratio - 1) ** 2 / 0.6)
        assert out.per_token.item() == pytest.approx(plain, rel=1e-12)
        out.per_token.sum().backward()
        return log_probs.grad.item()

    assert gradient(1.0) == pytest.approx(-advantage)
    assert gradient(best) == pytest.approx(0.0, abs=1e-12)
    assert gradient(best + 0.1 * math.copysign(1, advantage)) * advantage > 0  # pulled back


def test_the_example_advantage_is_the_groups_mean_over_the_batchs_deviation():
    config = compose([BATCH_STD]).algorithm
    inputs = AdvantageInputs(
        torch.tensor([[1.0], [0.0], [0.0], [0.0]]), torch.ones(4, 1), torch.tensor([0, 0, 1, 1])
    )
    std = math.sqrt((0.75**2 + 3 * 0.25**2) / 4)
    got = bound_advantage(config.adv_estimator, config)(inputs)
    assert got.squeeze(-1).tolist() == pytest.approx([0.5 / std, -0.5 / std, 0.0, 0.0])


# --- ranges, unknown settings, notes


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (f"{ACTOR}.spo_epsilon=0", f"{ACTOR}.spo_epsilon=0.0: must be greater than 0"),
        (f"{ACTOR}.spo_epsilon=nan", f"{ACTOR}.spo_epsilon=nan: must be finite and greater than 0"),
        (f"{ACTOR}.spo_epsilon=wide", f"{ACTOR}.spo_epsilon='wide': expected a number"),
        ("algorithm.std_floor=-1", "algorithm.std_floor=-1.0: must be greater than 0"),
        (f"{ACTOR}.spo_epsilom=0.3", f"{ACTOR}.spo_epsilom: engine=local has no such setting."),
    ],
)
def test_their_settings_are_checked_as_all_others(override, expected):
    (problem,) = problems(SPO, BATCH_STD, override)
    assert expected in problem


def test_what_they_do_not_read_has_no_effect_and_is_told_or_refused():
    config = compose([SPO, f"{ACTOR}.clip_ratio_c=9"])
    (note,) = idle_notes(config, {f"{ACTOR}.clip_ratio_c"})
    assert "my_loss.py:spo; it is read by aspo, dual_token, vanilla" in note
    (problem,) = problems(SPO, f"{ACTOR}.clip_ratio=0.3")
    assert problem.endswith("my_loss.py:spo reads: spo_epsilon")


def test_an_estimator_that_compares_a_group_says_so():
    (problem,) = problems(BATCH_STD, "actor_rollout_ref.rollout.n=1")
    assert "all advantages would be 0" in problem


def test_a_setting_may_need_another(write):
    file = write(
        f"{HEAD}@dataclass(frozen=True)\n"
        "class Mine(Section):\n"
        "    pull: float = knob(0.1, 'how hard', at_least=0, needs='use_kl_loss')\n"
        "@reads(Mine)\n"
        "def loss(inputs, settings): ...\n"
    )
    config = compose([f"{MODE}={file}:loss", f"{ACTOR}.pull=0.5"])
    assert idle_notes(config, {f"{ACTOR}.pull"}) == [f"{ACTOR}.pull=0.5 has no effect: use_kl_loss is False"]


def test_a_setting_may_be_a_list_a_dictionary_or_left_out(write):
    file = write(
        f"{HEAD}@dataclass(frozen=True)\n"
        "class Mine(Section):\n"
        "    shares: tuple[float, ...] = knob((0.5,), 'shares', at_least=0, at_most=1)\n"
        "    more: dict = knob({}, 'more')\n"
        "    most: int | None = knob(None, 'most', above=0)\n"
        "@reads(Mine)\n"
        "def loss(inputs, settings): ...\n"
    )
    plain = compose([f"{MODE}={file}:loss"]).actor_rollout_ref.actor
    assert (plain.shares, plain.more, plain.most) == ((0.5,), {}, None)
    given = [f"{ACTOR}.shares=[0.1,0.2]", f"{ACTOR}.more={{a: 1}}", f"{ACTOR}.most=3"]
    actor = compose([f"{MODE}={file}:loss", *given]).actor_rollout_ref.actor
    assert (actor.shares, actor.more, actor.most) == ((0.1, 0.2), {"a": 1}, 3)
    assert len(problems(f"{MODE}={file}:loss", f"{ACTOR}.shares=[0.1,2]", f"{ACTOR}.most=0")) == 2


def test_a_need_that_is_no_setting_is_named(write):
    section = "@dataclass(frozen=True)\nclass S(Section):\n    x: float = knob(1.0, 'x', needs='use_kl')\n"
    file = write(f"{HEAD}{section}@reads(S)\ndef f(a, b): ...")
    with pytest.raises(ArcherError, match=rf"{ACTOR}.x is declared to need {ACTOR}.use_kl, which is no"):
        compose([f"{MODE}={file}:f"])


def test_settings_of_built_in_losses_may_be_read_too(write):
    file = write(SAME_AS_BUILT_IN)
    config = compose([f"{MODE}={file}:loss", f"{ACTOR}.clip_ratio_high=0.28"]).actor_rollout_ref.actor
    ours, vanilla = (bound_loss(mode, config) for mode in (f"{file}:loss", "vanilla"))
    for ratio in (0.5, 1.27, 1.29):
        inputs, _ = loss_inputs(ratio, 1.0)
        assert torch.equal(ours(inputs).per_token, vanilla(inputs).per_token)


# --- what cannot be used


@pytest.mark.parametrize("key", [MODE, ESTIMATOR, KL, "algorithm.kl_penalty"])
@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (None, "f", "there is no such file"),
        ("def f(a, b): ...\ndef g(a, b): ...\n", "h", "defines no 'h'. It has: f, g."),
        ("x = 1\n", "", "defines no ''. It has: no functions."),
        ("import nothing_of_this_name\n", "f", "cannot be imported: ModuleNotFoundError: No module named"),
        ("def f(a, b:\n", "f", "cannot be imported: SyntaxError"),
        ("raise SystemExit(3)\n", "f", "cannot be imported: SystemExit: 3"),
        ("def f(a): ...\n", "f", "must be a function of ("),
        ("def f(a, b, c): ...\n", "f", "must be a function of ("),
        ("f = 3\n", "f", "must be a function of ("),
    ],
)
def test_a_file_that_cannot_be_used_gives_one_clear_message(key, text, name, expected, write, tmp_path):
    file = tmp_path / "mine.py" if text is None else write(text)
    (problem,) = problems(f"{key}={file}:{name}")
    assert problem.strip().startswith(key)
    assert expected in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@reads(dict)\ndef f(a, b): ...\n", "must be a dataclass that derives from archer.settings.Section"),
        ("class S(Section): ...\n@reads(S)\ndef f(a, b): ...\n", "must be a dataclass that derives from"),
        (
            "@dataclass(frozen=True)\nclass S(Section):\n    x: float = 1.0\n@reads(S)\ndef f(a, b): ...\n",
            "declare S.x as archer.settings.knob(default, help)",
        ),
        (
            "@dataclass(frozen=True)\nclass S(Section):\n    clip_ratio: float = knob(0.1, 'mine')\n"
            "@reads(S)\ndef f(a, b): ...\n",
            "S.clip_ratio: another algorithm declares this setting differently",
        ),
        (
            "@dataclass(frozen=True)\nclass S(Section):\n    ppo_epochs: int = knob(1, 'mine')\n"
            "@reads(S)\ndef f(a, b): ...\n",
            "S.ppo_epochs: ActorConfig has this setting already",
        ),
    ],
)
def test_a_declaration_that_cannot_be_used_gives_one_clear_message(text, expected, write):
    (problem,) = problems(f"{MODE}={write(HEAD + text)}:f")
    assert expected in problem


def test_a_kl_estimator_has_no_settings(write):
    section = "@dataclass(frozen=True)\nclass S(Section):\n    x: float = knob(1.0, 'x')\n"
    (problem,) = problems(f"{KL}={write(f'{HEAD}{section}@reads(S){chr(10)}def f(a, b): ...')}:f")
    assert "has no settings: remove its @reads" in problem


def test_a_broken_file_is_not_made_worse_by_settings_that_only_it_could_explain(write):
    (problem,) = problems(f"{MODE}={write('1 / 0')}:f", f"{ACTOR}.spo_epsilon=0.3")
    assert "cannot be imported: ZeroDivisionError: division by zero" in problem


def test_a_file_that_was_broken_is_read_again(write):
    file = write("oops")
    assert problems(f"{MODE}={file}:f")
    write("def f(inputs, settings): ...\n")
    compose([f"{MODE}={file}:f"])


def test_the_command_line_ends_with_the_message(write):
    done = CliRunner().invoke(app, ["train", "--print-config", f"{MODE}=nowhere.py:f"])
    assert isinstance(done.exception, ArcherError)
    assert "nowhere.py: there is no such file" in str(done.exception)


# --- one process, several configurations


def test_the_settings_of_a_file_do_not_leak_into_other_configurations():
    before, plain = list(key_names(TrainConfig)), compose()
    config = compose([SPO, BATCH_STD, f"{ACTOR}.spo_epsilon=0.3"])
    assert hasattr(config.actor_rollout_ref.actor, "spo_epsilon")
    assert list(key_names(TrainConfig)) == before
    assert compose() == plain
    assert not hasattr(compose().actor_rollout_ref.actor, "spo_epsilon")
    assert not hasattr(actor_config(), "spo_epsilon")
    (problem,) = problems(f"{ACTOR}.spo_epsilon=0.3")
    assert "no such setting" in problem
    assert compose([SPO, BATCH_STD, f"{ACTOR}.spo_epsilon=0.3"]) == config


def test_two_files_may_use_one_name_for_different_settings(write):
    text = HEAD + (
        "@dataclass(frozen=True)\nclass Mine(Section):\n    width: float = knob({default}, 'a width')\n"
        "@reads(Mine)\ndef loss(inputs, settings):\n    return settings.width\n"
    )
    first, second = write(text.format(default=1.0), "a/loss.py"), write(text.format(default=2.0), "b/loss.py")
    for file, width in ((first, 1.0), (second, 2.0), (first, 1.0)):
        config = compose([f"{MODE}={file}:loss"]).actor_rollout_ref.actor
        assert config.width == width
        assert bound_loss(f"{file}:loss", config)(loss_inputs(1.0, 1.0)[0]) == width


def test_the_same_relative_path_in_another_folder_is_another_file(write, tmp_path, monkeypatch):
    for folder, factor in (("a", 2.0), ("b", 3.0)):
        write(f"def times(log_probs, ref_log_probs):\n    return {factor} * log_probs\n", f"{folder}/kl.py")
        monkeypatch.chdir(tmp_path / folder)
        assert kl_estimator("kl.py:times")(torch.ones(1), torch.ones(1)).item() == factor


def test_a_file_is_run_once_whatever_names_it(write):
    file = write("runs = []\n" + SAME_AS_BUILT_IN)
    compose([f"{MODE}={file}:loss", f"{ESTIMATOR}={file}:advantage", f"{KL}={file}:kl"])
    functions = [load_function(str(file), name, "a key") for name in ("loss", "advantage", "kl")]
    assert len({id(function.__globals__) for function in functions}) == 1


# --- a run uses them


def train(folder: Path, *overrides: str) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Train two steps by the command; return what was measured, clocks apart, and the last weights."""
    done = CliRunner().invoke(app, ["train", *SMALL, f"trainer.default_local_dir={folder}", *overrides])
    assert done.exit_code == 0, (done.output, done.exception)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    volatile = ("timing_s/", "perf/")
    metrics = [{k: v for k, v in json.loads(line).items() if not k.startswith(volatile)} for line in lines]
    return metrics, load_file(folder / "checkpoints" / "global_step_2" / "model.safetensors")


@pytest.fixture(scope="module")
def vanilla(tmp_path_factory):
    """A run of built-in algorithms, with a KL in the loss and in the reward."""
    return train(
        tmp_path_factory.mktemp("vanilla") / "run",
        f"{ACTOR}.use_kl_loss=True",
        f"{ACTOR}.kl_loss_coef=0.1",
        f"{KL}=k3",
        "algorithm.use_kl_in_reward=True",
        "algorithm.kl_penalty=k3",
    )


def test_a_run_with_a_loss_advantage_and_kl_equal_to_the_built_in_ones_is_the_same_to_the_last_bit(
    vanilla, write, tmp_path
):
    file = write(SAME_AS_BUILT_IN)
    metrics, weights = train(
        tmp_path / "run",
        f"{MODE}={file}:loss",
        f"{ESTIMATOR}={file}:advantage",
        f"{ACTOR}.use_kl_loss=True",
        f"{ACTOR}.kl_loss_coef=0.1",
        f"{KL}={file}:kl",
        "algorithm.use_kl_in_reward=True",
        f"algorithm.kl_penalty={file}:kl",
    )
    calls = load_function(str(file), "calls", "a key")
    assert calls["loss"] >= 8 and calls["advantage"] == 2 and calls["kl"] > calls["advantage"]
    assert metrics == vanilla[0]
    assert weights.keys() == vanilla[1].keys()
    assert all(torch.equal(weights[name], vanilla[1][name]) for name in weights)


def test_a_run_with_the_examples_is_another_run_and_goes_on_where_it_stopped(vanilla, tmp_path):
    options = (SPO, BATCH_STD, f"{ACTOR}.spo_epsilon=0.3")
    metrics, weights = train(tmp_path / "whole", *options)
    assert any(not torch.equal(weights[name], vanilla[1][name]) for name in weights)
    stopped = ("train", *SMALL, f"trainer.default_local_dir={tmp_path}/split", *options)
    assert CliRunner().invoke(app, [*stopped, "trainer.total_training_steps=1"]).exit_code == 0
    assert train(tmp_path / "split", *options)[0][-1] == metrics[-1]
    other = CliRunner().invoke(app, [*stopped, f"{ACTOR}.spo_epsilon=0.4", "trainer.total_training_steps=3"])
    assert f"{ACTOR}.spo_epsilon: 0.3 there, 0.4 now" in str(other.exception)
