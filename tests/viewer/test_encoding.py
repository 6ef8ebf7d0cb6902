"""Token ids become text once, from the joined bytes; starts count as a browser counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archer.trace.vocab import Vocab
from archer.viewer.encoding import token_text

PIECES = [
    b"a",
    b" the",
    "π".encode(),
    "😀".encode()[:1],
    "😀".encode()[1:3],
    "😀".encode()[3:],
    "中".encode(),
    b"\xff",
    b"",
]
VOCAB = Vocab.from_tokens(PIECES)


def utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


@given(st.lists(st.integers(0, len(PIECES) + 1), max_size=40))
def test_starts_are_those_of_the_exact_decoding_in_utf16_units(ids: list[int]) -> None:
    found = token_text(VOCAB, np.array(ids, dtype=np.int32))
    exact = VOCAB.decode(ids)
    assert found.text == exact.text
    assert found.starts.tolist() == [utf16(exact.text[:start]) for start in exact.starts]


@pytest.mark.parametrize(
    ("ids", "starts"), [([0, 3, 4, 5, 0], [0, 1, 3, 3, 3]), ([6, 2, 1], [0, 1, 2]), ([], [])]
)
def test_a_character_belongs_to_the_token_of_its_first_byte(ids: list[int], starts: list[int]) -> None:
    assert token_text(VOCAB, np.array(ids, dtype=np.int32)).starts.tolist() == starts


def test_without_a_vocabulary_tokens_are_their_ids() -> None:
    found = token_text(None, np.array([7, 123], dtype=np.int32))
    assert (found.text, found.starts.tolist()) == ("⟨7⟩⟨123⟩", [0, 3])
