"""How well token values find the first false equation of rejected responses, and which knobs do it best."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import Tensor

from archer.trace.vocab import DecodedText
from archer.training.mistakes import touched
from archer.verify.bootstrap import Interval, interval, is_first, place_of
from archer.verify.equations import equations
from archer.verify.report import CheckResult, Figure, reported

COLUMNS = ("AUC", "AUC from", "AUC to", "top-1", "top-1 from", "top-1 to")
NULL_COLUMNS = ("null AUC", "null top-1")
CHOSEN = "influence, chosen on the other half"


@dataclass(frozen=True)
class Label:
    """The first false equation of a response, in tokens."""

    token: int
    """The one at which it becomes false."""
    results: frozenset[int]
    """Those that hold results of equations, and that one."""
    true: frozenset[Fraction] = field(default=frozenset(), compare=False)
    """What the false result should have been."""


@dataclass(frozen=True, eq=False)
class MistakeCase:
    """One rejected response with a false equation, and what each method says of its T tokens."""

    prompt: str
    """What its prompt is known by: prompts are divided into halves by it."""
    label: Label
    entropy: Tensor  # [T]
    values: Mapping[str, Tensor]  # method -> [T], high says "mistake"
    nulls: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)
    """The same under permuted accept / reject labels; a method that is not here sees no labels."""
    answered: bool | None = None
    """Whether an accepted response of its group writes what the result should have been; None: not known."""

    @property
    def chooses(self) -> bool:
        """Whether its half is the one that knobs are chosen on."""
        return hashlib.sha256(self.prompt.encode("utf-8", "surrogatepass")).digest()[0] % 2 == 0


def label_of(decoded: DecodedText, length: int) -> Label | None:
    """The token at which the first equation of a response becomes false; None where none does.

    length: tokens of the response; those after the text (the end mark) are no text
    """
    read = equations(decoded.text)
    wrong = [(equation.wrong, equation.true) for equation in read if equation.wrong is not None]
    if not wrong:
        return None
    first, true = min(wrong, key=lambda one: one[0])
    here = touched(decoded, first, first + 1)
    if not here or min(here) >= length:
        return None
    results = [touched(decoded, equation.start, equation.end) for equation in read]
    return Label(min(here), frozenset[int](here).union(*results), frozenset(map(abs, true)))


@dataclass(frozen=True)
class Population:
    """Among which tokens of its response a mistake is looked for."""

    name: str
    note: str
    answered: bool | None = None
    """Which cases alone are looked at; None: all."""

    def tokens(self, case: MistakeCase, threshold: float) -> Tensor:
        """[T] bool."""
        if self.answered is not None and case.answered is not self.answered:
            return torch.zeros_like(case.entropy, dtype=torch.bool)
        if self.name == "sure and unsure":
            return torch.ones_like(case.entropy, dtype=torch.bool)
        if self.name == "unsure":
            return case.entropy > threshold
        chosen = torch.zeros_like(case.entropy, dtype=torch.bool)
        chosen[sorted(case.label.results)] = True
        return chosen

    def holds(self, case: MistakeCase, threshold: float) -> bool:
        """Whether the mistake of a case is among these tokens, with others."""
        inside = self.tokens(case, threshold)
        return bool(inside[case.label.token]) and int(inside.sum()) > 1


POPULATIONS = (
    Population("sure and unsure", "all tokens of the response"),
    Population("unsure", "its tokens with entropy above {threshold:g} nats"),
    Population("results", "the tokens of the results of its equations"),
    Population(
        "sure and unsure",
        "all tokens, where an accepted response of the group writes the true result",
        answered=True,
    ),
    Population(
        "sure and unsure", "all tokens, where no accepted response writes the true result", answered=False
    ),
)


def figures_of(
    cases: Sequence[MistakeCase], method: str, population: Population, threshold: float, null: bool = False
) -> tuple[Tensor, Tensor]:
    """([n] AUC, [n] top-1) of the responses whose mistake is in the population with other tokens.

    null: under permuted labels, the mean over permutations
    """
    aucs, firsts = [], []
    for case in cases:
        if not population.holds(case, threshold):
            continue
        inside = population.tokens(case, threshold)
        place = int(inside[: case.label.token].sum())
        tables = [case.values[method]]
        if null and method in case.nulls:
            tables = list(case.nulls[method])
        chosen = [table.double()[inside] for table in tables]
        aucs.append(sum(place_of(values, place) for values in chosen) / len(chosen))
        firsts.append(sum(is_first(values, place) for values in chosen) / len(chosen))
    return torch.tensor(aucs, dtype=torch.float64), torch.tensor(firsts, dtype=torch.float64)


def best(
    cases: Sequence[MistakeCase], methods: Sequence[str], population: Population, threshold: float
) -> tuple[str, float] | None:
    """The method with the highest mean AUC, and that AUC; None where there is no case."""
    means = {name: figures_of(cases, name, population, threshold)[0] for name in methods}
    known = {name: float(aucs.mean()) for name, aucs in means.items() if len(aucs)}
    if not known:
        return None
    name = max(known, key=known.__getitem__)
    return name, known[name]


def localisation(
    cases: Sequence[MistakeCase], candidates: Sequence[str], threshold: float, seed: int
) -> list[CheckResult]:
    """One table a population; with candidates, one is chosen on a half and all are reported on the other.

    candidates: the methods to choose among; with fewer than two nothing is chosen and all cases are reported
    """
    chooses = len(candidates) > 1
    first = [case for case in cases if case.chooses] if chooses else []
    second = [case for case in cases if not case.chooses] if chooses else list(cases)
    methods = list(cases[0].values) if cases else []
    return [
        _table(first, second, methods, candidates if chooses else (), population, threshold, seed)
        for population in POPULATIONS
    ]


def _table(
    first: Sequence[MistakeCase],
    second: Sequence[MistakeCase],
    methods: Sequence[str],
    candidates: Sequence[str],
    population: Population,
    threshold: float,
    seed: int,
) -> CheckResult:
    has_nulls = any(case.nulls for case in second)
    lines: list[Figure] = []
    count = 0
    prompts = [case.prompt for case in second if population.holds(case, threshold)]

    def line(what: str, method: str) -> int:
        found = figures_of(second, method, population, threshold)
        values = [value for some in found for value in _three(interval(some, seed, prompts))]
        if has_nulls:
            nulls = figures_of(second, method, population, threshold, null=True)
            values += [float(some.mean()) if len(some) else float("nan") for some in nulls]
        lines.append(Figure(what, tuple(values)))
        return len(found[0])

    note = "High values say 'mistake'. Chance is 0.5. Intervals: 95 %, bootstrap over prompts."
    if candidates:
        chosen = best(first, candidates, population, threshold)
        if chosen is None:
            note += " Nothing was chosen: the half to choose on has no case."
        else:
            line(CHOSEN, chosen[0])
            on = len(figures_of(first, chosen[0], population, threshold)[0])
            note += f" Chosen on {on} other responses, by the AUC there of {chosen[1]:.3f}: {chosen[0]}."
    for method in methods:
        count = line(method, method)
    if has_nulls:
        note += " A null equal to its figure belongs to a method that sees no labels."
    where = population.note.format(threshold=threshold)
    return reported(
        f"first false equation among {where}",
        f"{count} rejected responses with a false equation: the place of the token where it becomes false.",
        note,
        (*COLUMNS, *NULL_COLUMNS) if has_nulls else COLUMNS,
        lines,
    )


def _three(found: Interval) -> tuple[float, float, float]:
    return found.mean, found.low, found.high
