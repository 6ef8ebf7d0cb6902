"""Rows of a step and their division into micro-batches."""

from functools import cache
from itertools import chain, combinations, pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from archer.config.actor import actor_config
from archer.engines.local.batching import micro_batches, whole_groups
from archer.generation.batch import (
    concatenate,
    micro_batch,
    split_by_rows,
    split_by_tokens,
    total_lengths,
)

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@given(lengths=LENGTHS, budget=st.integers(1, 200), data=st.data())
def test_every_row_is_in_one_micro_batch_and_none_is_over_budget_unless_alone(lengths, budget, data):
    rows = data.draw(st.permutations(range(len(lengths))))
    rows = rows[: data.draw(st.integers(1, len(rows)))]
    parts = split_by_tokens(lengths, rows, budget)
    assert sorted(row for part in parts for row in part) == sorted(rows)
    for part in parts:
        assert part
        padded = max(lengths[row] for row in part) * len(part)
        assert padded <= budget or len(part) == 1


@given(lengths=LENGTHS, budget=st.integers(1, 200), data=st.data())
def test_the_division_depends_on_lengths_alone_not_on_the_order_given(lengths, budget, data):
    rows = data.draw(st.permutations(range(len(lengths))))
    assert split_by_tokens(lengths, rows, budget) == split_by_tokens(lengths, range(len(lengths)), budget)


@given(lengths=LENGTHS, budget=st.integers(1, 200))
def test_longer_rows_come_first_in_as_few_and_as_even_micro_batches_as_the_budget_allows(lengths, budget):
    parts = split_by_tokens(lengths, range(len(lengths)), budget)
    order = [lengths[row] for part in parts for row in part]
    assert order == sorted(order, reverse=True)
    fewest, evenest = best_division(tuple(order), budget)
    assert len(parts) == fewest
    assert max(lengths[part[0]] * len(part) for part in parts) == evenest


@cache
def best_division(order: tuple[int, ...], budget: int) -> tuple[int, int]:
    """(number of parts, tokens of the largest) of the best way to cut a row of lengths, all ways tried."""
    if not order:
        return 0, 0
    best = (len(order) + 1, 0)
    for size in range(1, len(order) + 1):
        tokens = order[0] * size
        if tokens <= budget or size == 1:
            parts, largest = best_division(order[size:], budget)
            best = min(best, (parts + 1, max(largest, tokens)))
    return best


def test_no_rows_give_no_micro_batch():
    assert split_by_tokens([], [], 10) == []


@given(count=st.integers(0, 20), size=st.integers(1, 7))
def test_division_by_row_count_keeps_the_order(count, size):
    parts = split_by_rows(range(count), size)
    assert [row for part in parts for row in part] == list(range(count))
    assert all(len(part) == size for part in parts[:-1])
    assert all(1 <= len(part) <= size for part in parts)


def test_chosen_rows_are_cut_to_the_longest_of_them(make_responses):
    responses = make_responses([3, 4, 5, 6], [2, 7, 1, 3])
    part = responses.rows([3, 0])
    assert [prompt.index for prompt in part.prompts] == [3, 0]
    assert part.tokens.shape == part.mask.shape == part.log_probs.shape == (2, 3)
    assert part.lengths.tolist() == [3, 2]
    assert torch.equal(part.tokens, responses.tokens[[3, 0], :3])
    assert torch.equal(part.log_probs, responses.log_probs[[3, 0], :3])
    assert torch.equal(part.finished, responses.finished[[3, 0]])


def test_no_rows_are_empty_responses(make_responses):
    nothing = make_responses([3, 4], [2, 7]).rows([])
    assert len(nothing) == 0 and nothing.tokens.shape == (0, 0) and nothing.finished.shape == (0,)


def test_joined_responses_keep_every_row_and_pad_the_shorter_part(make_responses):
    one, two = make_responses([3, 4], [2, 5], seed=1), make_responses([2, 2, 2], [1, 3, 1], seed=2)
    both = concatenate([one, two])
    assert len(both) == 5 and both.tokens.shape == (5, 5)
    assert both.lengths.tolist() == [2, 5, 1, 3, 1]
    assert not both.mask[2:, 3:].any()
    for part, where in ((one, [0, 1]), (two, [2, 3, 4])):
        again = both.rows(where)
        assert again.prompts == part.prompts
        assert torch.equal(again.tokens[again.mask], part.tokens[part.mask])
        assert torch.equal(again.log_probs[again.mask], part.log_probs[part.mask])
        assert torch.equal(again.finished, part.finished)


def test_the_emitting_position_of_a_token_is_the_one_before_it(make_responses):
    responses = make_responses([3, 1, 6], [4, 7, 2])
    batch = micro_batch(responses, [2, 0, 1], CPU)
    width = batch.input_ids.shape[1]
    row, position = batch.emitting // width, batch.emitting % width
    assert len(row) == 4 + 7 + 2
    expected = [
        (place, len(responses.prompts[r].token_ids) + t - 1)
        for place, r in enumerate([2, 0, 1])
        for t in range(int(responses.lengths[r]))
    ]
    assert list(zip(row.tolist(), position.tolist(), strict=True)) == expected
    assert torch.equal(batch.input_ids[row, position + 1], batch.tokens[batch.mask])
    assert torch.equal(batch.response_tokens, batch.tokens[batch.mask])
    assert torch.equal(batch.scatter(batch.response_tokens), batch.tokens * batch.mask)


def test_a_micro_batch_holds_prompt_and_response_without_a_gap(make_responses):
    responses = make_responses([3, 1, 6], [4, 7, 2])
    batch = micro_batch(responses, [0, 2], CPU)
    assert batch.rows.tolist() == [0, 2] and batch.input_ids.shape == (2, 8) and batch.tokens.shape == (2, 4)
    for place, row in enumerate([0, 2]):
        sequence = [*responses.prompts[row].token_ids, *responses.tokens[row][responses.mask[row]].tolist()]
        assert batch.input_ids[place, : len(sequence)].tolist() == sequence


def test_token_budgets_count_prompt_and_response(make_responses):
    responses = make_responses([3, 5], [4, 2])
    assert total_lengths(responses) == [7, 7]
    budget = actor_config(ppo_max_token_len_per_gpu=13)
    assert list(micro_batches(responses, [0, 1], budget)) == [[0], [1]]
    budget = actor_config(ppo_max_token_len_per_gpu=14)
    assert list(micro_batches(responses, [0, 1], budget)) == [[0, 1]]


def test_portions_are_whole_groups_within_the_limit_or_one_group():
    groups = [0, 0, 1, 1, 2, 2, 3]
    lengths = [5, 5, 10, 10, 1, 1, 1]
    rows = [2, 3, 0, 1, 4, 5, 6]
    assert whole_groups(groups, rows, lengths, 0) == [[2, 3], [0, 1], [4, 5], [6]]
    assert whole_groups(groups, rows, lengths, 12) == [[2, 3], [0, 1], [4, 5, 6]]
    assert whole_groups(groups, rows, lengths, 33) == [rows]


def test_portions_are_even():
    groups = [row // 8 for row in range(128)]
    divided = whole_groups(groups, list(range(128)), [1035] * 128, 131_072)  # one group too many for one
    assert [len(portion) for portion in divided] == [64, 64]


@given(
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30)), min_size=1, max_size=7),
    most=st.integers(0, 300),
    multiple=st.integers(1, 4),
)
def test_no_division_has_fewer_portions_or_more_even_ones(sizes, most, multiple):
    groups = [number for number, (count, _) in enumerate(sizes) for _ in range(count)]
    lengths = [length for count, length in sizes for _ in range(count)]
    divided = whole_groups(groups, list(range(len(groups))), lengths, most, multiple)
    assert [row for portion in divided for row in portion] == list(range(len(groups)))
    assert all(groups[a[-1]] != groups[b[0]] for a, b in pairwise(divided))
    assert all(len(portion) % multiple == 0 for portion in divided[:-1])

    def divisions(begin, end):
        """All ways to cut the groups from begin to end where multiples of rows are on the left."""
        places = range(begin + 1, end)
        for cuts in chain.from_iterable(combinations(places, n) for n in range(len(places) + 1)):
            parts = [sizes[a:b] for a, b in pairwise([begin, *cuts, end])]
            if all(sum(count for count, _ in part) % multiple == 0 for part in parts[:-1]):
                yield [sum(count * length for count, length in part) for part in parts], [begin, *cuts, end]

    possible = []
    for tokens, cuts in divisions(0, len(sizes)):
        smallest = [len(list(divisions(a, b))) == 1 for a, b in pairwise(cuts)]
        if all(count <= most or alone for count, alone in zip(tokens, smallest, strict=True)):
            possible.append((len(tokens), max(tokens)))
    found = (len(divided), max(sum(lengths[row] for row in portion) for portion in divided))
    assert found == min(possible)


def test_portions_that_ranks_share_are_multiples_of_the_ranks():
    groups = ["a", "a", "b", "c", "d", "d", "e", "e"]
    rows = list(range(8))
    assert whole_groups(groups, rows, [1] * 8, 0, multiple=2) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert whole_groups(groups, rows, [1] * 8, 0, multiple=4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert whole_groups(groups, rows, [1] * 8, 3, multiple=4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
