"""The data sets that can be prepared by name."""

from archer.data.arithmetic_rows import DATA_SOURCE
from archer.data.prepare.code_sets import coding_row, humaneval_row
from archer.data.prepare.example import DataSet, HubSource
from archer.data.prepare.math_sets import (
    arithmetic_row,
    dapo_row,
    gsm8k_row,
    integer_row,
    math_row,
    olympiad_row,
)
from archer.errors import ArcherError

ARITHMETIC = "arithmetic"
_SETS = (
    DataSet(ARITHMETIC, "the built-in sums", DATA_SOURCE, "math", arithmetic_row, "none"),
    DataSet(
        "dapo-math-17k",
        "DAPO-Math-17k, competition problems with integer answers",
        "math_dapo",
        "math",
        dapo_row,
        "boxed",
        hub=HubSource("open-r1/DAPO-Math-17k-Processed", "all"),
    ),
    DataSet(
        "gsm8k",
        "OpenAI's grade-school problems",
        "openai/gsm8k",
        "math",
        gsm8k_row,
        "boxed",
        hub=HubSource("openai/gsm8k", "main", ("train", "test")),
    ),
    DataSet(
        "math",
        "Hendrycks' MATH, competition problems in seven subjects",
        "lighteval/MATH",
        "math",
        math_row,
        "boxed",
        hub=HubSource("DigitalLearningGmbH/MATH-lighteval", None, ("train", "test")),
    ),
    DataSet(
        "math500",
        "500 problems of MATH's test set",
        "HuggingFaceH4/MATH-500",
        "math",
        math_row,
        "boxed",
        "test",
        HubSource("HuggingFaceH4/MATH-500", None, ("test",)),
    ),
    DataSet(
        "aime24",
        "AIME 2024",
        "aime24",
        "math",
        integer_row(0, 999),
        "boxed",
        "test",
        HubSource("HuggingFaceH4/aime_2024", None, ("train",)),
    ),
    DataSet(
        "aime25",
        "AIME 2025",
        "aime25",
        "math",
        integer_row(0, 999),
        "boxed",
        "test",
        HubSource("math-ai/aime25", None, ("test",)),
    ),
    DataSet("aime", "AIME of any years", "aime", "math", integer_row(0, 999), "boxed", "test"),
    DataSet(
        "amc",
        "AMC 2022 and 2023, problems with a numeric answer",
        "amc23",
        "math",
        math_row,
        "boxed",
        "test",
        HubSource("AI-MO/aimo-validation-amc", None, ("train",)),
    ),
    DataSet(
        "olympiadbench",
        "OlympiadBench, open-ended English math",
        "olympiadbench",
        "math",
        olympiad_row,
        "boxed",
        "test",
        HubSource("Hothan/OlympiadBench", "OE_TO_maths_en_COMP", ("train",)),
    ),
    DataSet(
        "minerva",
        "Minerva's undergraduate problems",
        "minerva_math",
        "math",
        math_row,
        "boxed",
        "test",
        HubSource("math-ai/minervamath", None, ("test",)),
    ),
    DataSet(
        "mawps",
        "MAWPS, short word problems",
        "mawps",
        "math",
        math_row,
        "boxed",
        "test",
        None,
    ),
    DataSet(
        "qa",
        "any questions with short answers; --question-field and --answer-field name the fields",
        "math",
        "math",
        math_row,
        "boxed",
    ),
    DataSet(
        "humaneval",
        "OpenAI's HumanEval, functions to complete",
        "humaneval",
        "code",
        humaneval_row,
        "code-function",
        "test",
        HubSource("openai/openai_humaneval", None, ("test",)),
    ),
    DataSet(
        "livecodebench",
        "LiveCodeBench's rows, also as rLLM writes them",
        "livecodebench",
        "code",
        coding_row,
        "code-stdin",
        "test",
        HubSource("livecodebench/code_generation_lite", None, ("test",)),
    ),
    DataSet(
        "leetcode",
        "LeetCode problems with asserts",
        "leetcode",
        "code",
        coding_row,
        "code-function",
        "test",
        None,
    ),
)
DATA_SETS = {one.name: one for one in _SETS}
ALIASES = {"livecodebench-style": "livecodebench", "math-500": "math500", "amc23": "amc"}


def find_set(name: str) -> DataSet:
    """The data set of a name, or an error that lists all of them."""
    wanted = ALIASES.get(name, name)
    if wanted not in DATA_SETS:
        raise ArcherError(
            f"There is no data set {name!r}; there are: {', '.join(DATA_SETS)}. "
            "For a file of your own use qa."
        )
    return DATA_SETS[wanted]
