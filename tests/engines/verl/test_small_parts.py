"""Parts of the verl engine that need neither verl nor Ray."""

import random
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archer.config import compose
from archer.config.actor import actor_config
from archer.config.overrides import adopt_verl_keys
from archer.config.root import TrainConfig
from archer.engines.verl import versions
from archer.engines.verl.checkpoints import VerlRunFolder, VerlState
from archer.engines.verl.cluster import process_group_timeout
from archer.engines.verl.influence import TracedRows
from archer.engines.verl.metrics import validation_summary
from archer.engines.verl.order import PortionSize, order_rows
from archer.errors import ArcherError
from archer.rewards.config import RewardConfig


def deal(lengths, parts):
    """Any shares of equal size."""
    return [list(range(part, len(lengths), parts)) for part in range(parts)]


def as_verl_cuts(rows: list[int], size: int, ranks: int) -> list[set[int]]:
    """The mini-batches that verl makes of a batch: into ranks first, each rank's part into mini-batches."""
    share, each = len(rows) // ranks, size // ranks
    parts = [rows[rank * share : (rank + 1) * share] for rank in range(ranks)]
    return [{row for part in parts for row in part[start : start + each]} for start in range(0, share, each)]


@given(
    groups=st.integers(1, 6),
    each=st.integers(1, 4),
    ranks=st.sampled_from([1, 2, 4]),
    mini_batches=st.integers(1, 3),
    shuffled=st.booleans(),
    tokens=st.none() | st.integers(0, 40),
)
@settings(max_examples=200, deadline=None)
def test_verls_mini_batches_hold_whole_groups(groups, each, ranks, mini_batches, shuffled, tokens):
    each *= ranks  # rows of a mini-batch are divisible by the ranks
    total = groups * mini_batches
    rows = [f"g{row // each}" for row in range(total * each)]
    shuffle = (lambda size: random.Random(0).sample(range(size), size)) if shuffled else None
    size, share = groups * each, len(rows) // ranks
    portion = None if tokens is None else PortionSize(tokens, ranks, [1] * len(rows))
    order = order_rows(rows, [1] * len(rows), size, ranks, deal, shuffle, portion)
    assert sorted(order.rows) == list(range(len(rows)))
    assert order.split == frozenset()
    cuts = as_verl_cuts(order.rows, size, ranks)
    assert cuts == [{row for part in portions for row in part} for portions in order.mini_batches]
    for part in (part for portions in order.mini_batches for part in portions):
        held = [sum(row in part for row in order.rows[rank * share :][:share]) for rank in range(ranks)]
        assert held == [len(part) // ranks] * ranks  # every rank has its share of every portion
        assert len(part) == each or tokens is None or len(part) <= tokens
    for cut in cuts:
        inside = {rows[row] for row in cut}
        assert {row for row, group in enumerate(rows) if group in inside} == cut


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=9), ranks=st.sampled_from([1, 2]))
@settings(max_examples=200, deadline=None)
def test_groups_of_unequal_size_are_named_when_they_had_to_be_split(sizes, ranks):
    size = 8
    rows = [f"g{group}" for group, count in enumerate(sizes) for _ in range(count)]
    rows += [f"pad{i}" for i in range(-len(rows) % size)]
    order = order_rows(rows, [1] * len(rows), size, ranks, deal)
    assert sorted(order.rows) == list(range(len(rows)))
    for group in set(rows):
        homes = {
            number
            for number, cut in enumerate(as_verl_cuts(order.rows, size, ranks))
            if any(rows[row] == group for row in cut)
        }
        assert len(homes) == 1 or group in order.split


def test_a_missing_response_leaves_the_portions_of_all_other_groups_alone():
    rows = [f"g{row // 16}" for row in range(63 * 16)] + ["short"] * 15 + ["pad"]
    for first in (rows, rows[-16:-1] + rows[:-16] + rows[-1:]):  # the short group last, and first of all
        order = order_rows(first, [4] * 1024, 1024, 8, deal, portion=PortionSize(1024, 8, [4] * 1024))
        ((*portions,),) = order.mini_batches
        assert [len(part) for part in portions] == [256] * 4
        for part in portions:
            names = {first[row] for row in part}
            assert sum(name in names for name in first) == len(part)


def test_a_portion_is_about_eight_micro_batches_of_every_rank():
    by_tokens = actor_config(ppo_max_token_len_per_gpu=100)
    assert PortionSize.of(by_tokens, 2, [30, 40], {1}) == PortionSize(8 * 100 * 2, 2, [0, 40])
    by_rows = actor_config(use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=3)
    assert PortionSize.of(by_rows, 2, [30, 40], {0, 1}) == PortionSize(8 * 3 * 2 * 40, 6, [30, 40])


def test_rows_that_are_not_traced_do_not_fill_a_portion():
    rows = [f"g{row // 4}" for row in range(32)]
    kept = [9 if row < 8 else 0 for row in range(32)]
    order = order_rows(rows, [9] * 32, 32, 2, deal, portion=PortionSize(36, 2, kept))
    assert [len(part) for part in order.mini_batches[0]] == [4, 28]


def test_a_split_group_is_the_last_resort():
    order = order_rows(["a"] * 5 + ["b"] * 5 + ["c"] * 3 + ["d"] * 3, [1] * 16, 8, 2, deal)
    assert order.split == frozenset()


def brute_force_layout(rows, prompts, lengths, mask, packed, padding):
    """[(row, token) or None] of every position, by looking at each."""
    width = max(p + r for p, r in zip(prompts, lengths, strict=True))
    found, begin = [], 0
    for row, prompt, length in zip(rows, prompts, lengths, strict=True):
        for position in range(prompt + length if packed else width):
            token = position - prompt + 1
            inside = row >= 0 and 0 <= token < length and mask[begin + token]
            found.append((row, token) if inside else None)
        begin += length
    return found + [None] * (padding if packed else 0)


@given(
    shapes=st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=5),
    packed=st.booleans(),
    padding=st.integers(0, 3),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_layouts_name_the_position_that_emits_each_sampled_token(shapes, packed, padding, data):
    rows = [7 + number if traced else -1 for number, (traced, _, _) in enumerate(shapes)]
    prompts, lengths = [p for _, p, _ in shapes], [r for _, _, r in shapes]
    mask = data.draw(st.lists(st.booleans(), min_size=sum(lengths), max_size=sum(lengths)))
    traced = TracedRows(rows, prompts, lengths, torch.tensor(mask))
    layout = traced.packed(padding) if packed else traced.padded()
    found = [
        (row, token) if row >= 0 else None
        for row, token in zip(layout.row.tolist(), layout.token.tolist(), strict=True)
    ]
    assert found == brute_force_layout(rows, prompts, lengths, mask, packed, padding)


def test_emitting_positions_are_those_of_the_packed_layout():
    traced = TracedRows([3, 4], [2, 5], [3, 2], torch.ones(5, dtype=torch.bool))
    layout = traced.packed()
    assert traced.emitting_positions().tolist() == (layout.row >= 0).nonzero().squeeze(1).tolist()


def test_keys_that_only_verl_has_are_gathered_in_the_same_tree():
    tree = {
        "engine": {"name": "verl", "verl": {"actor_rollout_ref": {"rollout": {"dtype": "half"}}}},
        "actor_rollout_ref": {"rollout": {"n": 4, "max_num_batched_tokens": 99}},
        "critic": {"optim": {"lr": 1.0}},
    }
    own = adopt_verl_keys(TrainConfig, tree)
    assert own["actor_rollout_ref"] == {"rollout": {"n": 4}}
    assert own["engine"]["verl"] == {
        "actor_rollout_ref": {"rollout": {"dtype": "half", "max_num_batched_tokens": 99}},
        "critic": {"optim": {"lr": 1.0}},
    }


@pytest.mark.parametrize("text", ["0", "-5", "ten", "1.5"])
def test_a_bad_process_group_timeout_is_refused(monkeypatch, text):
    monkeypatch.setenv("VERL_PG_TIMEOUT_SECONDS", text)
    with pytest.raises(ArcherError, match="expected a whole number of seconds"):
        process_group_timeout()


def test_the_process_group_timeout_is_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("VERL_PG_TIMEOUT_SECONDS", "3600")
    assert process_group_timeout() == 3600
    monkeypatch.delenv("VERL_PG_TIMEOUT_SECONDS")
    assert process_group_timeout() is None


def test_everything_missing_or_unfit_is_named_with_its_remedy(monkeypatch):
    found = {
        "verl": "0.8.0",
        "ray": "2.60.0",
        "torch": "2.13.0",
        "transformers": "5.12.0",
        "tensordict": "0.10",
    }
    monkeypatch.setattr(versions, "installed", found.get)
    with pytest.raises(ArcherError) as error:
        versions.check_versions("vllm")
    text = str(error.value)
    assert "verl is 0.8.0, expected verl >= 0.9.1, < 0.9.2" in text
    assert "transformers is 5.12.0, expected transformers >= 5.9, < 5.11" in text
    assert "TransferQueue >= 0.1.10 is missing" in text
    assert "vllm >= 0.11 is missing, which actor_rollout_ref.rollout.name=vllm needs: pip install -c" in text
    assert "Found: torch 2.13.0" in text
    assert "ray is" not in text


def test_a_rollout_that_is_not_used_need_not_be_installed(monkeypatch):
    found = {
        "verl": "0.9.1",
        "ray": "2.60.0",
        "torch": "2.13.0+cpu",
        "transformers": "5.10.4",
        "tensordict": "0.10.0",
        "TransferQueue": "0.1.11",
    }
    monkeypatch.setattr(versions, "installed", found.get)
    assert versions.check_versions("transformers_cpu") == found


def validated(share: float):
    """Prompt a has one right and one wrong response, b a right and an unjudged one, c none that came back."""
    right = {"acc": 1.0, "score": 1.0, "tokens": 3.0, "finished": 1.0, "failure": ""}
    wrong = right | {"acc": 0.0, "score": 0.0}
    broken = wrong | {"failure": "crash: ValueError: the judge is down"}
    rows = [right, wrong, right, broken]
    infos = {name: [row[name] for row in rows] for name in right}
    return validation_summary(
        ["s"] * 4,
        ["a", "a", "b", "b"],
        infos,
        {("s", "a"): 2, ("s", "b"): 2, ("s", "c"): 2},
        RewardConfig(max_failed_share=share),
        "the validation after step 3",
    )


def test_validation_leaves_out_responses_that_failed_or_never_came():
    summary = validated(share=0.5)
    assert summary.accuracy == pytest.approx((0.5 + 1) / 2)
    assert (summary.overall.prompts, summary.overall.failures) == (3, 3)
    assert summary.overall.first_failure == "crash: ValueError: the judge is down"
    assert summary.metrics()["val-core/s/acc/pass@2"] == 1.0  # of prompt a, which alone has two verdicts
    assert summary.metrics()["val-aux/s/unjudged"] == 3


def test_a_validation_with_too_many_of_them_is_an_error_with_the_workers_own_words():
    with pytest.raises(ArcherError, match=r"3 of 6 .* the validation after step 3 .* judge is down"):
        validated(share=0.4)


def saved(folder: VerlRunFolder, step: int, weights: bytes) -> Path:
    """A checkpoint as verl and the engine leave it."""
    shard = folder.checkpoints.folder / f"global_step_{step}/actor/model_world_size_1_rank_0.pt"
    shard.parent.mkdir(parents=True)
    shard.write_bytes(weights)
    folder.checkpoints.complete(step, VerlState({}, None, 1))
    return shard


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda shard: shard.write_bytes(shard.read_bytes()[:-1]), "was saved|were saved"),
        (lambda shard: shard.write_bytes(b"x" + shard.read_bytes()[1:]), "its content has changed"),
        (lambda shard: shard.write_bytes(shard.read_bytes()[:-1] + b"x"), "its content has changed"),
        (lambda shard: shard.unlink(), "model_world_size_1_rank_0.pt"),
    ],
)
@pytest.mark.parametrize("size", [1000, 5000])
def test_a_damaged_checkpoint_of_verls_is_left_out_for_the_one_before(
    tmp_path, monkeypatch, damage, told, size
):
    monkeypatch.setattr("archer.runs.integrity.PART_BYTES", 2)  # 1,024 of them: the larger file has gaps
    folder = VerlRunFolder(compose(["engine=verl", f"trainer.default_local_dir={tmp_path}/run"]))
    folder.claim()
    folder.settle()
    saved(folder, 1, bytes(size))
    damage(saved(folder, 2, bytes(size)))
    assert folder.inspect().step == 1
    assert re.search(told, folder.warnings[0])
    folder.release()
