"""The data sets that can be prepared by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from archer.data.builtin import DATA_SOURCE
from archer.data.prepare.code_sets import FUNCTION, STDIN, coding_row, humaneval_row, mbpp_row
from archer.data.prepare.example import Example
from archer.data.prepare.math_sets import (
    aime_row,
    arithmetic_row,
    dapo_row,
    gsm8k_row,
    math_row,
    olympiad_row,
)
from archer.errors import ArcherError

ARITHMETIC = "arithmetic"


@dataclass(frozen=True)
class HubSource:
    """Where a data set is on the hub."""

    repo: str
    splits: tuple[str, ...]
    config: str | None = None


@dataclass(frozen=True)
class DataSet:
    """A data set that can be prepared. `convert` raises RowError for a row it cannot use."""

    name: str
    title: str
    data_source: str  # chooses the reward
    hub: HubSource | None
    split: str = "test"
    convert: Callable[[Mapping[str, Any]], Example] = math_row
    instruction: str = "boxed"  # name of a preset
    ability: Literal["math", "code"] = "math"


_SETS = (
    DataSet(ARITHMETIC, "the built-in sums", DATA_SOURCE, None, "train", arithmetic_row, "none"),
    DataSet(
        "dapo-math-17k",
        "DAPO-Math-17k, competition problems with integer answers",
        "math_dapo",
        HubSource("open-r1/DAPO-Math-17k-Processed", ("train",), "all"),
        "train",
        dapo_row,
    ),
    DataSet(
        "gsm8k",
        "OpenAI's grade-school problems",
        "openai/gsm8k",
        HubSource("openai/gsm8k", ("train", "test"), "main"),
        "train",
        gsm8k_row,
    ),
    DataSet(
        "math",
        "Hendrycks' MATH, competition problems in seven subjects",
        "lighteval/MATH",
        HubSource("DigitalLearningGmbH/MATH-lighteval", ("train", "test")),
        "train",
    ),
    DataSet(
        "math500",
        "500 problems of MATH's test set",
        "HuggingFaceH4/MATH-500",
        HubSource("HuggingFaceH4/MATH-500", ("test",)),
    ),
    DataSet(
        "aime24", "AIME 2024", "aime24", HubSource("HuggingFaceH4/aime_2024", ("train",)), convert=aime_row
    ),
    DataSet("aime25", "AIME 2025", "aime25", HubSource("math-ai/aime25", ("test",)), convert=aime_row),
    DataSet("aime", "AIME of any years", "aime", None, convert=aime_row),
    DataSet(
        "amc",
        "AMC 2022 and 2023, problems with a numeric answer",
        "amc23",
        HubSource("AI-MO/aimo-validation-amc", ("train",)),
    ),
    DataSet(
        "olympiadbench",
        "OlympiadBench, open-ended English math",
        "olympiadbench",
        HubSource("Hothan/OlympiadBench", ("train",), "OE_TO_maths_en_COMP"),
        convert=olympiad_row,
    ),
    DataSet(
        "minerva",
        "Minerva's undergraduate problems",
        "minerva_math",
        HubSource("math-ai/minervamath", ("test",)),
    ),
    DataSet("mawps", "MAWPS, short word problems", "mawps", None),
    DataSet(
        "qa",
        "any questions with short answers; --question-field and --answer-field name the fields",
        "math",
        None,
        "train",
    ),
    DataSet(
        "humaneval",
        "OpenAI's HumanEval, functions to complete",
        "humaneval",
        HubSource("openai/openai_humaneval", ("test",)),
        "test",
        humaneval_row,
        FUNCTION,
        "code",
    ),
    DataSet(
        "mbpp",
        "MBPP, short functions with assertions",
        "mbpp",
        HubSource("google-research-datasets/mbpp", ("train", "test"), "full"),
        "test",
        mbpp_row,
        FUNCTION,
        "code",
    ),
    DataSet(
        "livecodebench",
        "LiveCodeBench's rows, also as rLLM writes them",
        "livecodebench",
        HubSource("livecodebench/code_generation_lite", ("test",)),
        "test",
        coding_row,
        STDIN,
        "code",
    ),
    DataSet(
        "leetcode", "LeetCode problems with asserts", "leetcode", None, "test", coding_row, FUNCTION, "code"
    ),
)
DATA_SETS = {one.name: one for one in _SETS}
ALIASES = {"livecodebench-style": "livecodebench", "math-500": "math500", "amc23": "amc"}


def find_set(name: str) -> DataSet:
    """The data set of a name, or an error that lists all of them."""
    wanted = ALIASES.get(name, name)
    if wanted not in DATA_SETS:
        raise ArcherError(
            f"There is no data set {name!r}; there are: {', '.join(DATA_SETS)}. For your own file use qa."
        )
    return DATA_SETS[wanted]
