import itertools
import random

import pytest

from archer.data.builtin import arithmetic_rows, builtin_rows, draw_pairs, split_of
from archer.errors import ArcherError


def operands(rows):
    return [(r["extra_info"]["a"], r["extra_info"]["b"]) for r in rows]


def test_a_row_is_in_verls_schema():
    row = arithmetic_rows("val", size=1)[0]
    a, b = row["extra_info"]["a"], row["extra_info"]["b"]
    assert row == {
        "prompt": [{"role": "user", "content": f"{a}+{b}="}],
        "data_source": "arithmetic",
        "reward_model": {"style": "rule", "ground_truth": str(a + b)},
        "extra_info": {"a": a, "b": b, "index": 0, "split": "val"},
    }


def test_the_rows_never_change():
    # The shipped model was not trained on these validation pairs: a change here would break that promise.
    assert operands(arithmetic_rows("val", size=3)) == [(835, 448), (348, 123), (663, 741)]
    assert operands(arithmetic_rows("train", size=3)) == [(787, 566), (702, 695), (849, 755)]


def test_operands_have_the_digits_asked_for():
    for digits in (2, 3, 5):
        numbers = set(itertools.chain(*operands(arithmetic_rows("train", digits=digits, size=500))))
        assert {len(str(n)) for n in numbers} == {digits}


def test_all_problems_of_a_dataset_are_different():
    pairs = operands(arithmetic_rows("train", size=4096))
    assert len(set(pairs)) == 4096


def test_train_and_validation_share_no_pair_not_even_the_other_way_round():
    def unordered(split, size):
        return {frozenset(p) for p in operands(arithmetic_rows(split, digits=2, size=size))}

    assert unordered("train", 6000).isdisjoint(unordered("val", 700))


def test_about_a_tenth_of_all_pairs_is_for_validation():
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    share = sum(split_of(a, b) == "val" for a, b in pairs) / len(pairs)
    assert share == pytest.approx(0.1, abs=0.01)


def test_a_smaller_dataset_is_the_beginning_of_a_larger_one():
    assert arithmetic_rows("train", size=10) == arithmetic_rows("train", size=100)[:10]


def test_drawn_pairs_belong_to_their_split():
    drawn = itertools.islice(draw_pairs("val", 3, random.Random(0)), 50)
    assert {split_of(a, b) for a, b in drawn} == {"val"}


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_largest_size_offered_is_possible_and_one_more_is_an_error(split):
    largest = {"train": 6561, "val": 729}[split]
    assert len(arithmetic_rows(split, digits=2, size=largest)) == largest
    with pytest.raises(
        ArcherError, match=f"size={largest + 1} is not possible with digits=2.*1 to {largest}"
    ):
        arithmetic_rows(split, digits=2, size=largest + 1)


@pytest.mark.parametrize("digits", [0, 1, 13])
def test_unsupported_digits_are_an_error(digits):
    with pytest.raises(ArcherError, match=f"digits={digits} is not supported; choose 2 to 12"):
        arithmetic_rows("train", digits=digits)


def test_builtin_names_give_the_rows_of_their_split():
    assert builtin_rows("builtin:arithmetic/train") == arithmetic_rows("train")
    assert builtin_rows("builtin:arithmetic/val?digits=4&size=9") == arithmetic_rows("val", digits=4, size=9)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "builtin:arithmetic",
            "no built-in dataset 'builtin:arithmetic'; there are: builtin:arithmetic/train",
        ),
        ("builtin:algebra/train", "no built-in dataset 'builtin:algebra/train'"),
        ("builtin:arithmetic/val?digit=3", "unknown option 'digit'; the options are: digits, size"),
        ("builtin:arithmetic/val?size=many", "size='many' is not a number"),
        ("builtin:arithmetic/val?size=", "size='' is not a number"),
        ("builtin:arithmetic/val?size=-1", "size='-1' is not a number"),
        ("builtin:arithmetic/val?size=0", "size=0 is not possible"),
    ],
)
def test_a_wrong_builtin_name_is_an_error_that_says_what_there_is(name, message):
    with pytest.raises(ArcherError) as raised:
        builtin_rows(name)
    assert message in str(raised.value)
