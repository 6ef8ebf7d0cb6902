"""Prompts, responses and rewards that both trainers are given."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

SAMPLES = 4
PROMPTS = ("3+5=", "12+34=", "100+250=", "77+8=")
# mixed, mixed, all rejected (no advantage), mixed
REWARDS = ((1, 0, 0, 1), (0, 0, 1, 0), (0, 0, 0, 0), (1, 1, 0, 1))


@dataclass(frozen=True)
class Fixed:
    """Of each prompt its token ids, and of its responses tokens and rewards."""

    prompts: list[str]
    prompt_ids: list[list[int]]
    responses: list[list[list[int]]]
    rewards: list[list[float]]

    @classmethod
    def make(cls, tokenizer, seed: int = 0) -> "Fixed":
        """Random responses of different lengths, each at most once."""
        generator = torch.Generator().manual_seed(seed)
        digits = tokenizer.convert_tokens_to_ids([str(digit) for digit in range(10)])
        responses, lengths = [], iter((5, 3, 8, 2, 6, 7, 4, 9, 3, 6, 5, 4, 8, 7, 2, 6))
        for _ in PROMPTS:
            rows = []
            for _ in range(SAMPLES):
                chosen = torch.randint(0, 10, (next(lengths),), generator=generator)
                rows.append([digits[i] for i in chosen.tolist()] + [tokenizer.eos_token_id])
            responses.append(rows)
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in PROMPTS]
        return cls(list(PROMPTS), ids, responses, [list(map(float, line)) for line in REWARDS])

    def write(self, path: Path) -> Path:
        """As JSON."""
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: Path) -> "Fixed":
        """What was written."""
        return cls(**json.loads(path.read_text()))
