"""The sample is reproducible, has contrast in every group, and knows where each response went wrong."""

import pytest
import torch

from archer.data.arithmetic import write_steps
from archer.errors import ArcherError
from archer.generation.model import load_tokenizer
from archer.verify import sample as sample_module
from archer.verify.sample import draw_sample


def test_one_seed_gives_one_sample_and_another_seed_another(sample):
    _, again = draw_sample(prompts=3, responses=6, seed=0)
    _, other = draw_sample(prompts=3, responses=6, seed=1)
    assert torch.equal(again.responses.tokens, sample.responses.tokens)
    assert other.responses.tokens.tolist() != sample.responses.tokens.tolist()


def test_every_group_has_both_verdicts_and_they_are_the_rewards(sample):
    for group in sample.groups:
        assert any(group.accepted) and not all(group.accepted)
        assert sample.rewards[list(group.rows)].bool().tolist() == list(group.accepted)
        assert (sample.advantages[list(group.rows)] > 0).tolist() == list(group.accepted)


def test_the_first_mistake_is_where_the_text_first_leaves_the_right_one(sample):
    tokenizer = load_tokenizer(sample_module.MODEL)
    rejected = 0
    for row, prompt in enumerate(sample.responses.prompts):
        tokens = sample.responses.tokens[row][sample.responses.mask[row]].tolist()
        right = tokenizer(write_steps(prompt.extra_info["a"], prompt.extra_info["b"]))["input_ids"]
        right.append(tokenizer.eos_token_id)
        differing = [t for t, (x, y) in enumerate(zip(tokens, right, strict=False)) if x != y]
        if tokens == right:
            assert sample.mistakes[row] == frozenset()
        else:
            assert min(sample.mistakes[row]) == differing[0]
        rejected += not sample.rewards[row]
    assert rejected > 0


def test_steps_are_the_digits_between_equals_sign_and_newline(sample):
    tokenizer = load_tokenizer(sample_module.MODEL)
    for row, steps in enumerate(sample.steps):
        pieces = [tokenizer.decode([t]) for t in sample.responses.tokens[row][sample.responses.mask[row]]]
        inside, expected = False, set()
        for token, piece in enumerate(pieces):
            inside = piece == "=" or (inside and piece.isdigit())
            if inside and piece != "=":
                expected.add(token)
        assert steps == expected


@pytest.mark.parametrize("responses", [2, 3, 5, 6])
def test_narrowing_keeps_both_verdicts_and_renumbers_rows(sample, responses):
    narrow = sample.narrowed(2, responses)
    assert [row for group in narrow.groups for row in group.rows] == list(range(2 * responses))
    for group in narrow.groups:
        assert any(group.accepted) and not all(group.accepted)
        assert narrow.rewards[list(group.rows)].bool().tolist() == list(group.accepted)


def test_narrowing_to_everything_changes_nothing(sample):
    whole = sample.narrowed(3, 6)
    assert whole.groups == sample.groups
    assert torch.equal(whole.responses.tokens, sample.responses.tokens)


def test_a_model_that_never_errs_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(
        sample_module, "_right", lambda responses, _: torch.ones(len(responses), dtype=torch.bool)
    )
    with pytest.raises(ArcherError, match="--responses"):
        draw_sample(prompts=2, responses=2, seed=0)
