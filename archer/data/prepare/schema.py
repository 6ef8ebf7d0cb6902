"""The rows that preparing writes: verl's schema, the same columns for every data set.

Because all prepared files have the same columns, they can be mixed in `data.train_files` and read together
by readers that insist on it (verl's, `datasets`). What a data set has beyond them is JSON text in
`extra_info.meta`.
"""

import hashlib
import unicodedata
from typing import Any

import pyarrow as pa

from archer.data.prepare.example import DataSet, Example, compact_json
from archer.data.prepare.prompt import PromptStyle

SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "ability": pa.string(),
        "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
        "extra_info": pa.struct(
            {
                "split": pa.string(),
                "index": pa.int64(),
                "id": pa.string(),
                "question": pa.string(),
                "meta": pa.string(),
            }
        ),
    }
)


def to_row(
    example: Example, data_set: DataSet, style: PromptStyle, *, data_source: str, split: str, index: int
) -> dict[str, Any]:
    """The row of an example; `index` is its place in the output."""
    return {
        "data_source": data_source,
        "prompt": style.messages(example.question, example.instruction or data_set.instruction),
        "ability": data_set.ability,
        "reward_model": {"style": "rule", "ground_truth": example.ground_truth},
        "extra_info": {
            "split": split,
            "index": index,
            "id": example.id,
            "question": example.question,
            "meta": compact_json(example.meta),
        },
    }


def question_key(question: str) -> str:
    """What makes two questions the same: their text, whatever its spacing and its form of accents."""
    text = " ".join(unicodedata.normalize("NFC", question).split())
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def answer_key(ground_truth: str) -> str:
    """A short name of an answer, to tell duplicates that agree from duplicates that do not."""
    return hashlib.blake2b(ground_truth.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
