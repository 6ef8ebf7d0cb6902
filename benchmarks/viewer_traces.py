"""Synthetic traces for the viewer's benchmark and screenshots: large, but with text and values one can read.

The text imitates written-out mathematics: sentences of common words, formulas, line breaks, some characters
of several bytes that are split over tokens. Entropy is low inside words and numbers and high where a sentence
turns; influence is heavy-tailed, with its sign leaning to the response's verdict.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from archer.trace.schema import TraceStep
from archer.trace.vocab import Vocab
from archer.trace.writer import TraceWriter

_TEXT = """
the of and to in is we that it as for this with so by can be has on at from then let find each sum number
value angle triangle circle equal least prime digit square root side point line length area total product
ratio integer solution equation because therefore wait check again maybe instead first second third next
finally hence which must there are two three four five six seven eight nine ten
"""
WORDS = _TEXT.split()
SYMBOLS = ["=", "+", "-", "*", "/", "(", ")", "^2", ",", ".", ":", "x", "y", "n", "k", "$", "\\frac{", "}"]
TURNS = {" wait", " maybe", " instead", " so", " because", " therefore", " let", " hence", " check"}
BREAKS = ["\n", "\n\n", ".\n\n"]


def make_vocab() -> Vocab:
    """A small vocabulary of whole words, digits, signs, line breaks and halves of characters."""
    tokens = [
        b"<|end|>",
        "∑".encode()[:2],
        "∑".encode()[2:],
        "π".encode(),
        "😀".encode()[:2],
        "😀".encode()[2:],
    ]
    tokens += [piece.encode() for piece in BREAKS]
    tokens += [str(digit).encode() for digit in range(10)]
    tokens += [symbol.encode() for symbol in SYMBOLS] + [f" {symbol}".encode() for symbol in SYMBOLS]
    tokens += [word.encode() for word in WORDS] + [f" {word}".encode() for word in WORDS]
    return Vocab.from_tokens(tokens)


def make_step(rows: int, length: int, seed: int, group_size: int = 16, skill: float = 0.5) -> TraceStep:
    """One step of `rows` responses up to `length` tokens; `skill` is the share of accepted ones."""
    rng = np.random.default_rng(seed)
    vocab = make_vocab()
    texts = [vocab.token(index).decode("utf-8", "replace") for index in range(len(vocab))]
    weights = np.array([_weight(text, index) for index, text in enumerate(texts)])
    ids = rng.choice(len(texts), size=(rows, length), p=weights / weights.sum())
    ids[:, 1:][ids[:, :-1] == 1] = 2  # the halves of a character follow each other
    ids[:, 1:][ids[:, :-1] == 4] = 5
    lengths = np.clip(rng.lognormal(np.log(length * 0.6), 0.45, rows).astype(int), min(8, length), length)
    lengths[0] = length
    groups = np.arange(rows) // group_size
    accepted = rng.random(rows) < skill
    turning = np.array([text in TURNS for text in texts])[ids]
    entropies = rng.gamma(0.5, 0.35, ids.shape) + turning * rng.gamma(4.0, 0.4, ids.shape)
    sign = np.where(accepted, 1.0, -1.0)[:, None]
    influence = (rng.standard_normal(ids.shape) ** 3 + 0.4 * sign) * (0.4 + entropies) * 1e-3
    influence[rng.random(ids.shape) < 0.002] = np.nan
    mean, spread = accepted.mean(), max(accepted.std(), 1e-6)
    prompts = [rng.choice(len(texts), size=60, p=weights / weights.sum()) for _ in range(groups[-1] + 1)]
    log_probs = -entropies * rng.standard_exponential(ids.shape)
    moved = rng.normal(0, 0.05, ids.shape)
    truths = rng.integers(0, 1000, groups[-1] + 1)[groups]
    answers = np.where(accepted, truths, truths + 1)
    return TraceStep.from_batch(
        entropies=entropies,
        response_mask=np.arange(length) < lengths[:, None],
        responses=ids,
        response_index=np.arange(rows),
        log_probs=log_probs,
        rollout_log_probs=log_probs * rng.normal(1, 0.01, ids.shape),
        ratio=np.exp(moved),
        clipped=(moved > 0.1).astype(np.int8) - (moved < -0.1),
        loss_weight=np.ones(ids.shape),
        data_source=["synthetic"] * rows,
        ground_truth=[str(truth) for truth in truths],
        extracted_answer=[str(answer) for answer in answers],
        reason=[
            "" if right else f"expected {truth}, found {answer}"
            for right, truth, answer in zip(accepted, truths, answers, strict=True)
        ],
        truncated=lengths == length,
        unjudged=np.zeros(rows, dtype=bool),
        sample_index=groups,
        reward=accepted.astype(np.float32),
        accepted=accepted,
        group_id=groups,
        uid=[f"prompt-{group}" for group in groups],
        prompts=[prompts[group] for group in groups],
        influence=influence,
        advantage=np.broadcast_to(((accepted - mean) / spread)[:, None], ids.shape),
    )


def with_credit(step: TraceStep) -> TraceStep:
    """The same step weighed as by token credit: tokens of rejected responses with influence are spared."""
    assert step.influence is not None and step.advantage is not None
    credit = np.where((step.advantage < 0) & (step.influence > 0), 0.0, 1.0)
    shape = {"credit": credit.astype(np.float16), "credit_score": step.influence}
    return replace(step, paid=(step.advantage * credit).astype(np.float16), **shape)


def write_trace(
    folder: Path,
    steps: int,
    rows: int,
    length: int,
    group_size: int = 16,
    name: str = "synthetic",
    seed: int = 0,
    credit: bool = False,
) -> Path:
    """A run folder with both traces of `steps` steps, all arrays in it; accepted responses become more.

    With `credit` the steps hold what token credit paid, too.
    """
    given: dict[str, Any] = {
        "metadata": {"experiment": name, "model": "synthetic", "temperature": 1.0},
        "vocab": make_vocab(),
    }
    with (
        TraceWriter(folder / "entropy_trace", kind="entropy", **given) as entropy,
        TraceWriter(folder / "influence_trace", kind="influence", beside=entropy, **given) as influence,
    ):
        for step in range(1, steps + 1):
            made = make_step(rows, length, seed + step, group_size, 0.25 + 0.5 * step / steps)
            if credit:
                made = with_credit(made)
            entropy.write(step, replace(made, influence=None, advantage=None))
            influence.write(step, made, refers=True)
    return folder


def _weight(text: str, index: int) -> float:
    if index in (0, 2, 5):
        return 0.0
    if index in (1, 4) or text == "π":
        return 0.002
    if text in BREAKS:
        return 0.012
    return 0.03 if text.startswith(" ") and len(text) > 2 else 0.006
