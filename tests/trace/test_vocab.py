import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from archer.errors import ArcherError
from archer.trace.npz import DamagedFileError, write_npz
from archer.trace.vocab import Vocab, decode_bytes, read_vocab, vocab_from_tokenizer, write_vocab

CORPUS = ["Let x = 3 and y = 4, then x + y = 7.\n", "naïve café 数学 🙂🙂", "  indented\tand\r\nbroken"] * 3
TEXTS = [*CORPUS, "🦉 never seen 語 ﷽", "a\x00b\x1b[31m"]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Llama-like: metaspace spelling, characters out of the vocabulary as `<0xNN>` tokens."""
    pieces = [
        "<unk>",
        "<s>",
        *[f"<0x{byte:02X}>" for byte in range(256)],
        *"abcdefghijklmnopqrstuvwxyz",
        "▁",
        "▁a",
        "an",
    ]
    merges = [("▁", "a"), ("a", "n")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


def characters() -> Tokenizer:
    letters = sorted(set("".join(TEXTS)))
    tokenizer = Tokenizer(
        models.WordLevel({letter: index for index, letter in enumerate(letters)}, unk_token="?")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, byte_fallback, characters])
@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_the_tokens_join_to_the_text(make, text):
    tokenizer = make()
    vocab = vocab_from_tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert b"".join(vocab.token(index) for index in ids) == text.encode()
    assert vocab.decode(ids).text == text


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_any_sequence_of_tokens_decodes_as_the_tokenizer_decodes_it(make):
    tokenizer = make()
    vocab = vocab_from_tokenizer(tokenizer)
    rng = np.random.default_rng(0)
    for _ in range(200):
        ids = rng.integers(0, tokenizer.get_vocab_size(), 6).tolist()
        joined = b"".join(vocab.token(index) for index in ids)
        if make is byte_level or joined.decode(errors="replace").isprintable():
            expected = tokenizer.decode(ids, skip_special_tokens=False)
            if "\ufffd" not in expected:  # how broken bytes are shown differs between tokenizers
                assert vocab.decode(ids).text == expected


def test_added_and_special_tokens_stand_for_their_text():
    tokenizer = byte_level()
    vocab = vocab_from_tokenizer(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    )
    assert vocab.token(tokenizer.token_to_id("<|endoftext|>")) == b"<|endoftext|>"
    assert vocab.token(tokenizer.token_to_id("<think>")) == b"<think>"


def test_byte_tokens_are_their_byte():
    tokenizer = byte_fallback()
    assert vocab_from_tokenizer(tokenizer).token(tokenizer.token_to_id("<0x0A>")) == b"\n"
    assert vocab_from_tokenizer(tokenizer).token(tokenizer.token_to_id("<0xF0>")) == b"\xf0"


def test_wordpiece_pieces_continue_a_word_or_begin_one_with_a_blank():
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2, "now": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    ids = tokenizer.encode("playing now").ids
    assert vocab_from_tokenizer(tokenizer).decode(ids).text == " playing now"


def test_a_word_level_tokenizer_without_decoder_is_read_with_blanks_between_words():
    tokenizer = Tokenizer(models.WordLevel({"two": 0, "words": 1}, unk_token="two"))
    assert vocab_from_tokenizer(tokenizer).decode([0, 1]).text == " two words"


def test_metaspace_and_end_of_word_spellings_become_blanks():
    tokenizer = Tokenizer(models.WordLevel({"▁two": 0, "words": 1}, unk_token="words"))
    tokenizer.decoder = decoders.Metaspace()
    assert vocab_from_tokenizer(tokenizer).decode([0, 1]).text == " twowords"
    tokenizer = Tokenizer(models.WordLevel({"two</w>": 0, "words": 1}, unk_token="words"))
    tokenizer.decoder = decoders.BPEDecoder()
    assert vocab_from_tokenizer(tokenizer).decode([0, 1]).text == "two words"


def test_a_decoder_whose_bytes_are_unknown_is_refused():
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.decoder = decoders.CTC()
    with pytest.raises(ArcherError, match="CTC"):
        vocab_from_tokenizer(tokenizer)


class PythonTokenizer:
    """A tokenizer without the `tokenizers` library, as a small project writes its own."""

    @property
    def added_tokens_decoder(self):
        return {2: "<eos>"}

    def get_vocab(self):
        return {"a": 0, "é": 1, "<eos>": 2, "b": 5}

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)


def test_a_tokenizer_written_in_python_is_asked_token_by_token_and_gaps_are_named():
    vocab = vocab_from_tokenizer(PythonTokenizer())
    tokens = [vocab.token(index) for index in range(7)]
    assert tokens == [b"a", "é".encode(), b"<eos>", b"<|3|>", b"<|4|>", b"b", b"<|6|>"]


def test_a_character_split_over_tokens_is_drawn_once_by_the_token_that_begins_it():
    owl = "🦉".encode()
    decoded = decode_bytes([b"a", owl[:1], owl[1:3], owl[3:] + b"b", b"c"])
    assert decoded.text == "a🦉bc"
    assert decoded.tokens() == ["a", "🦉", "", "b", "c"]


def test_a_character_cut_off_at_the_end_is_one_replacement_sign():
    assert decode_bytes([b"a", "語".encode()[:2]]).tokens() == ["a", "\ufffd"]


def oracle(tokens: list[bytes]) -> list[str]:
    """Grow the prefix byte by byte: a character belongs to the token of its first byte."""
    joined, texts, position = b"".join(tokens), ["" for _ in tokens], 0
    owners = [index for index, token in enumerate(tokens) for _ in token]
    while position < len(joined):
        size = 1
        for length in range(1, 5):
            try:
                char = joined[position : position + length].decode()
            except UnicodeDecodeError as error:
                char, size = "\ufffd", error.end
                if error.reason != "unexpected end of data":
                    break
            else:
                size = length
                break
        texts[owners[position]] += char
        position += size
    return texts


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=6) | st.text(max_size=3).map(str.encode), max_size=8))
def test_spans_of_any_bytes_are_those_of_a_byte_by_byte_oracle(tokens):
    decoded = decode_bytes(tokens)
    assert decoded.text == b"".join(tokens).decode(errors="replace")
    assert decoded.tokens() == oracle(tokens)
    assert "".join(decoded.tokens()) == decoded.text


def test_the_table_comes_back_from_its_file_and_plain_numpy_reads_it(tmp_path):
    vocab = Vocab.from_tokens([b"a", b"", b"\xff\x00", "é".encode()])
    write_vocab(tmp_path, vocab, fsync=False)
    assert read_vocab(tmp_path).equals(vocab)
    plain = np.load(tmp_path / "vocab.npz", allow_pickle=False)
    assert (plain["data"].dtype, plain["offsets"].dtype) == (np.uint8, np.int64)
    assert plain["offsets"].tolist() == [0, 1, 1, 3, 5]


@pytest.mark.parametrize("offsets", [[0, 2], [1, 3], [0, 2, 1, 3], []])
def test_a_table_whose_offsets_do_not_fit_is_damage(tmp_path, offsets):
    with (tmp_path / "vocab.npz").open("wb") as file:
        write_npz(file, {"data": np.zeros(3, np.uint8), "offsets": np.array(offsets, np.int64)})
    with pytest.raises(DamagedFileError, match=r"vocab\.npz"):
        read_vocab(tmp_path)
