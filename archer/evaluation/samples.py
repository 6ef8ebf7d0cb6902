"""One sampled and judged response, as a line of `samples.jsonl`."""

import json
from dataclasses import asdict, dataclass
from typing import Any

MAX_SHOWN_TRUTH = 2000  # characters; test suites of code problems are not repeated for every response


@dataclass(frozen=True)
class Sample:
    """A response to a prompt of the dataset. Everything an evaluation reports follows from these."""

    prompt_index: int  # place in the dataset
    sample: int  # 0 ... n-1
    data_source: str
    prompt: str
    ground_truth: Any  # None where it is too long to repeat
    response: str
    answer: str | None  # what is compared with the ground truth; None: none given, or judged by a function
    correct: bool
    score: float
    tokens: int
    finished: bool  # ended by itself, not by the length limit
    failure: str | None  # why there is no judgement: "timeout", "crash: ..."
    majority: float | None  # of the prompt (the same in its n samples); None: answers cannot be compared

    def to_line(self) -> str:
        """The sample as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "Sample":
        """The sample of a line written by `to_line`."""
        return cls(**json.loads(line))


def shown_truth(ground_truth: Any) -> Any:
    """The ground truth as it goes into a sample: itself, or None where it is long."""
    return ground_truth if len(json.dumps(ground_truth, default=str)) <= MAX_SHOWN_TRUTH else None
