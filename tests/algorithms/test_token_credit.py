"""Token credit: every mode against a loop over tokens, and what shapes its weights."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from archer.algorithms.token_credit.base import CREDIT_MODES, CreditInputs
from archer.algorithms.token_credit.config import token_credit_config
from archer.algorithms.token_credit.scored import ScoreDefinition
from archer.algorithms.token_credit.shaping import permuted, shaped, strength_at, with_mean_one
from archer.errors import ArcherError
from archer.training.credit import TokenCredit, credit_sums
from archer.training.metrics import TokenSums

N, L = 12, 9


def inputs_of(rng: torch.Generator, mask: Tensor, **changes: object) -> CreditInputs:
    shape = mask.shape
    scores = torch.randn(shape, generator=rng, dtype=torch.float64)
    scores[::3] = torch.nan
    mistakes = torch.zeros(shape, dtype=torch.bool)
    mistakes[torch.arange(len(mask)), torch.randint(0, shape[1], (len(mask),), generator=rng)] = True
    values = {
        "log_probs": torch.rand(shape, generator=rng, dtype=torch.float64).log(),
        "entropy": torch.rand(shape, generator=rng, dtype=torch.float64) ** 4,
        "advantages": torch.randn(shape, generator=rng, dtype=torch.float64),
        "mask": mask,
        "accepted": torch.arange(len(mask)) % 2 == 0,
        "judged": torch.arange(len(mask)) % 5 != 4,
        "scores": scores,
        "mistakes": mistakes & mask,
    }
    return CreditInputs(**(values | changes))


def quantile(values: list[float], q: float) -> float:
    ordered, at = sorted(values), q * (len(values) - 1)
    low, high = math.floor(at), math.ceil(at)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def by_hand(mode: str, inputs: CreditInputs, row: int) -> dict[int, float]:
    """The weights of one response, token by token, as the mode's documentation has them."""
    tokens = [t for t in range(inputs.mask.shape[1]) if inputs.mask[row, t]]
    log_prob = {t: float(inputs.log_probs[row, t]) for t in tokens}
    entropy = {t: float(inputs.entropy[row, t]) for t in tokens}
    score = {t: float(inputs.scores[row, t]) for t in tokens}
    known = {t: 0.0 if math.isnan(s) else s for t, s in score.items()}
    if not tokens:
        return {}
    if mode == "spare_confident":
        return {t: 0.0 if math.exp(log_prob[t]) > 0.5 else 1.0 for t in tokens}
    if mode in ("nthr", "influence"):
        return {t: 0.0 if known[t] > 0 else 1.0 for t in tokens}
    if mode == "delta":
        rms = math.sqrt(sum(s * s for s in known.values()) / len(tokens))
        sign = 1 if inputs.accepted[row] else -1
        return {t: 0.8 + 0.4 / (1 + math.exp(-sign * known[t] / rms if rms else 0)) for t in tokens}
    if mode == "entropy_top":
        cut = quantile(list(entropy.values()), 0.8)
        return {t: 1.0 if entropy[t] > cut else 0.0 for t in tokens}
    if mode == "neg_log_prob":
        total = sum(-value for value in log_prob.values())
        return {t: min(8.0, -log_prob[t] * len(tokens) / total) for t in tokens}
    if mode == "oracle":
        return {t: 1.0 if inputs.mistakes[row, t] else 0.0 for t in tokens}
    assert mode == "none"
    return dict.fromkeys(tokens, 1.0)


SIDES = {"delta": "both", "entropy_top": "both", "neg_log_prob": "both"}


def test_there_is_a_rule_by_hand_for_every_mode():
    named = ["none", "spare_confident", "nthr", "influence", "delta", "entropy_top", "neg_log_prob", "oracle"]
    assert sorted(CREDIT_MODES.names()) == sorted(named)


@pytest.mark.parametrize("mode", sorted(CREDIT_MODES.names()))
def test_every_token_has_the_weight_of_a_loop_over_tokens(mode, rng, ragged_mask):
    inputs = inputs_of(rng, ragged_mask(rng, N, L))
    credit = TokenCredit(token_credit_config(mode=mode), seed=0)
    weights = credit.weigh(inputs, step=1, rows=range(N)).weights
    side = SIDES.get(mode, "rejected")
    for row in range(N):
        acts = bool(inputs.judged[row]) and (side == "both" or not inputs.accepted[row])
        expected = by_hand(mode if acts else "none", inputs, row)
        for t in range(L):
            assert float(weights[row, t]) == pytest.approx(expected.get(t, 0.0), rel=1e-9), (row, t)


@pytest.mark.parametrize("side", ["rejected", "accepted", "both"])
def test_credit_acts_on_the_responses_that_are_chosen_and_never_on_unjudged_ones(side, rng, ragged_mask):
    mask = ragged_mask(rng, N, L)
    inputs = inputs_of(rng, mask, log_probs=torch.zeros(N, L, dtype=torch.float64))  # all tokens are sure
    config = token_credit_config(mode="spare_confident", responses=side)
    weights = TokenCredit(config, 0).weigh(inputs, 1, range(N)).weights
    for row in range(N):
        verdict = "unjudged" if not inputs.judged[row] else "accepted" if inputs.accepted[row] else "rejected"
        acts = verdict == side or (side == "both" and verdict != "unjudged")
        assert (weights[row][mask[row]] == (0.0 if acts else 1.0)).all()


def test_strength_and_range_move_weights_towards_one():
    raw = torch.tensor([[0.0, 1.0, 3.0, 9.0]])
    mask, rows = torch.ones(1, 4, dtype=torch.bool), torch.tensor([True])
    half = shaped(raw, mask, rows, strength=0.5, keep_sum=False, low=0.0, high=8.0)
    assert half.tolist() == [[0.5, 1.0, 2.0, 5.0]]
    held = shaped(raw, mask, rows, strength=1.0, keep_sum=False, low=0.25, high=2.0)
    assert held.tolist() == [[0.25, 1.0, 2.0, 2.0]]
    none = shaped(raw, mask, rows, strength=0.0, keep_sum=False, low=0.0, high=8.0)
    assert none.tolist() == [[1.0] * 4]


def test_keep_sum_pays_a_response_as_much_as_before(rng, ragged_mask):
    mask = ragged_mask(rng, N, L)
    weights = torch.rand(N, L, generator=rng, dtype=torch.float64)
    weights[3] = 0
    scaled = with_mean_one(weights, mask)
    for row in range(N):
        count = int(mask[row].sum())
        assert float(scaled[row][mask[row]].sum()) == pytest.approx(count)
        if count and row != 3:
            ratio = (scaled[row] / weights[row])[mask[row]]
            assert torch.allclose(ratio, ratio[:1].expand_as(ratio))


@pytest.mark.parametrize("strength", [0.25, 0.5, 1.0])
def test_strength_goes_in_a_straight_line_from_one_to_weights_of_mean_one(strength, rng, ragged_mask):
    inputs = inputs_of(rng, torch.ones(N, L, dtype=torch.bool))
    config = token_credit_config(mode="neg_log_prob", strength=strength, max_weight=100.0)
    weights = TokenCredit(config, 0).weigh(inputs, 1, range(N)).weights
    for row in (r for r in range(N) if inputs.judged[r]):
        surprise = [-float(value) for value in inputs.log_probs[row]]
        mean = sum(surprise) / L
        assert weights[row].tolist() == pytest.approx([1 + strength * (s / mean - 1) for s in surprise])
        assert float(weights[row].mean()) == pytest.approx(1)


@pytest.mark.parametrize(("step", "expected"), [(1, 0.8), (3, 0.4), (5, 0.0), (9, 0.0)])
def test_the_strength_falls_to_none(step, expected):
    assert strength_at(step, 0.8, anneal_steps=4) == pytest.approx(expected)
    assert strength_at(step, 0.8, anneal_steps=0) == 0.8


def test_a_mode_whose_strength_has_fallen_acts_no_more():
    credit = TokenCredit(token_credit_config(mode="nthr", anneal_steps=2), seed=0)
    assert [credit.acts_at(step) for step in (1, 2, 3, 4)] == [True, True, False, False]
    assert not TokenCredit(token_credit_config(), seed=0).acts_at(1)


def test_permuting_keeps_each_kind_of_token_its_weights_and_moves_them(rng, ragged_mask):
    mask = torch.ones(6, 40, dtype=torch.bool)
    weights = torch.rand(6, 40, generator=rng)
    entropy = torch.rand(6, 40, generator=rng) * 0.1
    streams = [torch.Generator().manual_seed(row) for row in range(6)]
    moved = permuted(weights, entropy, mask, 0.05, streams)
    for row in range(6):
        for kind in (entropy[row] > 0.05, entropy[row] <= 0.05):
            assert sorted(moved[row][kind].tolist()) == sorted(weights[row][kind].tolist())
        assert not torch.equal(moved[row], weights[row])


def test_padding_and_outside_tokens_stay_where_they_are_when_weights_are_permuted(rng, ragged_mask):
    mask = ragged_mask(rng, N, L)
    weights = torch.where(mask, torch.rand(N, L, generator=rng), -1.0)
    streams = [torch.Generator().manual_seed(row) for row in range(N)]
    moved = permuted(weights, torch.rand(N, L, generator=rng), mask, 0.5, streams)
    assert (moved[~mask] == -1).all() and (moved[mask] >= 0).all()


def test_a_permutation_belongs_to_seed_step_and_row_alone(rng, ragged_mask):
    inputs = inputs_of(rng, torch.ones(N, 30, dtype=torch.bool))
    config = token_credit_config(mode="neg_log_prob", permute=True)
    whole = TokenCredit(config, seed=3).weigh(inputs, 5, range(N)).weights
    part = CreditInputs(
        **{name: value[4:7] for name, value in vars(inputs).items()}  # the same rows in another micro-batch
    )
    assert torch.equal(TokenCredit(config, seed=3).weigh(part, 5, range(4, 7)).weights, whole[4:7])
    assert not torch.equal(TokenCredit(config, seed=3).weigh(inputs, 6, range(N)).weights, whole)
    assert not torch.equal(TokenCredit(config, seed=4).weigh(inputs, 5, range(N)).weights, whole)


def test_metrics_are_means_over_tokens_by_verdict(rng, ragged_mask):
    mask = ragged_mask(rng, N, L)
    inputs = inputs_of(rng, mask)
    weights = torch.where(mask, torch.rand(N, L, generator=rng).round(), 0.0)
    sums = TokenSums()
    credit_sums(inputs, weights, inputs.rejected, sums)
    found = sums.means()
    rejected = [(r, t) for r in range(N) for t in range(L) if mask[r, t] and inputs.rejected[r]]
    spared = [cell for cell in rejected if weights[cell] < 1]
    assert found["weight_mean"] == pytest.approx(float(weights[mask].mean()))
    assert found["weight_rejected"] == pytest.approx(sum(float(weights[c]) for c in rejected) / len(rejected))
    assert found["spared_share"] == pytest.approx(len(spared) / len(rejected))
    entropies = [float(inputs.entropy[cell]) for cell in spared]
    assert found["entropy_spared"] == pytest.approx(sum(entropies) / len(spared))
    assert found["scored_share"] == pytest.approx(float(inputs.scores[mask].isfinite().double().mean()))


OWN = """
from dataclasses import dataclass
from archer.plugins import reads
from archer.settings import Section, knob

@dataclass(frozen=True)
class Mine(Section):
    factor: float = knob(0.5, "what accepted tokens are paid", at_least=0)

@reads(Mine, side="accepted")
def constant(inputs, settings):
    return settings.factor * inputs.mask.to(inputs.log_probs.dtype)

def greedy(inputs, settings):
    return inputs.known_scores.exp()

def wrong_shape(inputs, settings):
    return inputs.log_probs.sum(-1)

def a_list(inputs, settings):
    return [[1.0]]

def not_a_number(inputs, settings):
    return inputs.log_probs.new_full(inputs.mask.shape, float("nan")).where(inputs.rejected[:, None], 1)

def centred(inputs, settings):
    return inputs.log_probs - inputs.log_probs.mean()

def flags(inputs, settings):
    return inputs.log_probs < -1

def outside(inputs, settings):
    return flags(inputs, settings).double().where(inputs.mask & inputs.rejected[:, None], float("nan"))
"""


def test_a_users_own_mode_with_its_settings(tmp_path, rng, ragged_mask):
    from archer.config import compose

    file = tmp_path / "credit.py"
    file.write_text(OWN)
    overrides = [f"algorithm.token_credit.mode={file}:constant", "algorithm.token_credit.factor=0.25"]
    config = compose(["recipe=arithmetic", *overrides]).algorithm.token_credit
    inputs = inputs_of(rng, ragged_mask(rng, N, L))
    weights = TokenCredit(config, 0).weigh(inputs, 1, range(N)).weights
    accepted = inputs.of_side("accepted")[:, None] & inputs.mask
    assert (weights[accepted] == 0.25).all() and (weights[inputs.mask & ~accepted] == 1).all()


def own(file, name: str) -> TokenCredit:
    file.write_text(OWN)
    return TokenCredit(token_credit_config(mode=f"{file}:{name}"), 0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wrong_shape", r"weights of shape \[12\]; expected one for each token, \[12, 9\]"),
        ("a_list", "returned list; expected a tensor"),
        ("not_a_number", "not finite, the first of them nan; expected finite weights, at least 0"),
        ("centred", "negative or not finite, the first of them -"),
    ],
)
def test_what_is_no_weight_is_refused(name, said, tmp_path, rng, ragged_mask):
    with pytest.raises(ArcherError, match=said):
        own(tmp_path / "credit.py", name).weigh(inputs_of(rng, ragged_mask(rng, N, L)), 1, range(N))


def test_weights_of_any_kind_of_number_are_taken_and_those_not_looked_at_may_be_anything(
    tmp_path, rng, ragged_mask
):
    inputs = inputs_of(rng, ragged_mask(rng, N, L))
    expected = (inputs.log_probs < -1).double().where(inputs.rejected[:, None], 1) * inputs.mask
    for name in ("flags", "outside"):
        weights = own(tmp_path / "credit.py", name).weigh(inputs, 1, range(N)).weights
        assert weights.dtype == inputs.advantages.dtype and torch.equal(weights, expected)


def test_scores_that_a_users_mode_did_not_ask_for_are_an_error_in_words(tmp_path, rng, ragged_mask):
    inputs = inputs_of(rng, ragged_mask(rng, N, L), scores=None)
    with pytest.raises(ArcherError, match="says which: @reads"):
        own(tmp_path / "credit.py", "greedy").weigh(inputs, 1, range(N))


def test_the_example_of_a_users_mode(rng, ragged_mask):
    mode = f"{Path(__file__).parents[2]}/examples/my_credit.py:soft_nthr"
    credit = TokenCredit(token_credit_config(mode=mode, softness=0.5, projection_dim=8), 0)
    assert credit.scores == ScoreDefinition("head", projection_dim=8)
    inputs = inputs_of(rng, ragged_mask(rng, N, L))
    weights = credit.weigh(inputs, 1, range(N)).weights
    for row in range(N):
        tokens = [t for t in range(L) if inputs.mask[row, t]]
        scores = [0.0 if math.isnan(s := float(inputs.scores[row, t])) else s for t in tokens]
        unit = 0.5 * math.sqrt(sum(s * s for s in scores) / max(1, len(scores))) or 1.0
        for t, score in zip(tokens, scores, strict=True):
            expected = 2 / (1 + math.exp(score / unit)) if inputs.rejected[row] else 1.0
            assert float(weights[row, t]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "nthr", "hessian_mode": "invers"}, "hessian_mode=invers: must be one of inverse, identity"),
        ({"mode": "nthr", "responses": "all"}, "must be one of auto, rejected, accepted, both"),
        (
            {"mode": "delta", "min_weight": 3.0, "max_weight": 2.0},
            "min_weight=3.0: must be at most max_weight",
        ),
        ({"mode": "delta", "strenght": 1.0}, "token_credit.strenght: there is no such setting"),
        ({"mode": "nhtr"}, "Did you mean 'nthr'"),
    ],
)
def test_settings_that_a_script_makes_are_checked_too(settings, said):
    with pytest.raises(ArcherError, match=said):
        token_credit_config(**settings)


def test_a_script_gives_its_own_mode_its_settings(tmp_path, rng, ragged_mask):
    (tmp_path / "credit.py").write_text(OWN)
    config = token_credit_config(mode=f"{tmp_path / 'credit.py'}:constant", factor=0.25)
    inputs = inputs_of(rng, ragged_mask(rng, N, L))
    weights = TokenCredit(config, 0).weigh(inputs, 1, range(N)).weights
    assert (weights[inputs.of_side("accepted")[:, None] & inputs.mask] == 0.25).all()


def test_inputs_of_different_shapes_are_refused(rng, ragged_mask):
    with pytest.raises(ValueError, match="expected tensors"):
        inputs_of(rng, ragged_mask(rng, N, L), entropy=torch.zeros(N, L + 1))
