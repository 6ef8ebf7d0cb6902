"""The order in which a run meets its prompts: endless, deterministic and resumable."""

import random

from archer.errors import ArcherError


class PromptSampler:
    """Indices of prompts, epoch after epoch.

    The order within an epoch depends on `(seed, epoch)` alone, so a resumed run meets exactly the
    prompts an uninterrupted one would have met. Batches run across the end of an epoch: no prompt is ever
    dropped. A batch at that seam may hold a prompt twice, once from each epoch.
    """

    def __init__(self, size: int, batch_size: int, shuffle: bool, seed: int) -> None:
        if not 1 <= batch_size <= size:
            raise ArcherError(
                f"A batch of {batch_size} prompts cannot be drawn from a dataset of {size}: "
                f"set data.train_batch_size to 1 ... {size}, or give more prompts in data.train_files."
            )
        self._size, self._batch_size, self._shuffle, self._seed = size, batch_size, shuffle, seed
        self._go_to(0, 0)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in an epoch, as verl counts them; the rest goes into the next epoch's first batch."""
        return self._size // self._batch_size

    def next_batch(self, k: int | None = None) -> list[int]:
        """The next `k` indices (by default the batch size)."""
        wanted = self._batch_size if k is None else k
        batch: list[int] = []
        while len(batch) < wanted:
            chunk = self._order[self._position : self._position + wanted - len(batch)]
            batch += chunk
            self._position += len(chunk)
            if self._position == self._size:
                self._go_to(self._epoch + 1, 0)
        return batch

    def state_dict(self) -> dict[str, int | bool]:
        """Where the sampler stands (`epoch` counts the completed ones), and what its order depends on."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "size": self._size,
            "shuffle": self._shuffle,
            "seed": self._seed,
        }

    def load_state_dict(self, state: dict[str, int | bool]) -> None:
        """Go to where another sampler stood; an error if that one had another order."""
        own = self.state_dict()
        meaning = {
            "size": "number of prompts (data.train_files)",
            "shuffle": "data.shuffle",
            "seed": "data.seed",
        }
        for key, name in meaning.items():
            if state[key] != own[key]:
                raise ArcherError(
                    f"The checkpoint's data position does not fit this run: {name} was {state[key]}, "
                    f"now it is {own[key]}. Restore the old value, or start a new run in another folder."
                )
        self._go_to(int(state["epoch"]), int(state["position"]))

    def _go_to(self, epoch: int, position: int) -> None:
        """Stand before `position`, always less than the size, in the order of `epoch`."""
        self._epoch, self._position = epoch, position
        self._order = list(range(self._size))
        if self._shuffle:
            random.Random(f"{self._seed}/{epoch}").shuffle(self._order)
