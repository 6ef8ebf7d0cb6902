"""Steps recorded in parts are one step; and a part of it again."""

import numpy as np

from archer.trace.schema import TraceStep
from archer.trace.stack import first_rows, stacked


def same(one: TraceStep, other: TraceStep) -> bool:
    ours, theirs = one.arrays(), other.arrays()
    return ours.keys() == theirs.keys() and all(
        np.array_equal(ours[name], theirs[name], equal_nan=ours[name].dtype.kind == "f") for name in ours
    )


def test_the_first_rows_of_stacked_steps_are_the_first_step(step):
    one, two = step(rows=3, width=6, seed=1), step(rows=5, width=11, seed=2)
    whole = stacked([one, two])
    assert whole.rows == 8 and whole.response_mask.shape[1] == 10
    assert same(first_rows(whole, 3), one)
    assert same(first_rows(whole, 8), whole)
    assert [whole.prompt(row).tolist() for row in range(8)] == [
        part.prompt(row).tolist() for part in (one, two) for row in range(part.rows)
    ]


def test_padding_is_what_the_contract_says(step):
    whole = stacked([step(rows=2, width=4, seed=1), step(rows=2, width=9, seed=2)])
    outside = ~whole.response_mask
    assert np.isnan(whole.influence[outside]).all()
    assert not whole.entropies[outside].any() and not whole.ratio[outside].any()


def test_what_one_part_lacks_is_empty_there(batch):
    given = batch(rows=2)
    silent = {
        name: value for name, value in given.items() if name not in ("reason", "influence", "advantage")
    }
    whole = stacked([TraceStep.from_batch(**silent), TraceStep.from_batch(**given)])
    assert whole.reason.tolist() == ["", "", *given["reason"]]
    assert np.isnan(whole.influence[:2]).all() and not np.isnan(whole.influence[2:]).all()
