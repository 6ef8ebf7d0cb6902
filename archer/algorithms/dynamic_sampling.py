"""Dynamic sampling: generate again until enough groups are mixed (DAPO, arXiv 2503.14476).

The bookkeeping only, as a value that is replaced after each generation batch:

    sampling = DynamicSampling(wanted=train_batch_size, max_num_gen_batches=10)
    while not sampling.done:
        ...  # generate for `sampling.missing` prompts or more, verify
        sampling = sampling.after(correct, groups)
    if sampling.shortfall:
        ...  # say it, and train on sampling.kept
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from torch import Tensor

from archer.algorithms.groups import GroupCounts, count_groups, mixed_groups
from archer.settings import Section, knob


@dataclass(frozen=True)
class FilterGroupsConfig(Section):
    """`algorithm.filter_groups`."""

    switch: ClassVar[str] = "enable"

    enable: bool = knob(False, "drop groups that are all right or all wrong and sample new prompts instead")
    metric: Literal["acc"] = knob("acc", "what is compared: the raw correctness, never the shaped reward")
    max_num_gen_batches: int = knob(10, "most generations per step; then train on what there is", above=0)


@dataclass(frozen=True)
class DynamicSampling:
    """Which groups make up the next training batch.

    Groups are kept in the order in which they were generated; mixed groups beyond `wanted` are left out.
    """

    wanted: int  # prompts in a training batch
    max_num_gen_batches: int = 0  # give up after so many; 0 or less: until there are enough (as in verl)
    kept: tuple[int, ...] = ()  # ids of the groups to train on
    gen_batches: int = 0  # generation batches seen
    counts: GroupCounts = field(default_factory=GroupCounts)  # of all groups seen, left out or not

    @property
    def missing(self) -> int:
        """Groups still to be found."""
        return self.wanted - len(self.kept)

    @property
    def done(self) -> bool:
        """Whether to stop generating: there are enough groups, or the generation batches are used up."""
        return self.missing == 0 or 0 < self.max_num_gen_batches <= self.gen_batches

    @property
    def shortfall(self) -> str | None:
        """What to tell the user when sampling ended with too few groups; None otherwise.

        Fewer groups are no failure: the step trains on those there are. With none at all it makes no update,
        but it still counts as a step, so that schedules do not drift.
        """
        if not self.done or self.missing == 0:
            return None
        return (
            f"dynamic sampling found {len(self.kept)} of {self.wanted} mixed groups in {self.gen_batches} "
            f"generation batches ({self.counts.all_correct} groups all correct, {self.counts.all_wrong} all "
            "wrong); the step trains on those. Raise algorithm.filter_groups.max_num_gen_batches or "
            "actor_rollout_ref.rollout.n, or choose prompts nearer to what the model can do."
        )

    def after(self, correct: Tensor, groups: Tensor, judged: Tensor | None = None) -> "DynamicSampling":
        """Account for one more generation batch.

        correct: [N] bool, as verified
        groups:  [N] int64; ids are not reused between the generation batches of one step
        judged:  [N] bool, the responses that could be verified; None: all. A group is mixed by these alone.
        """
        found = dict.fromkeys(groups[mixed_groups(correct, groups, judged)].tolist())
        reused = found.keys() & set(self.kept)
        if reused:
            raise ValueError(f"group ids {sorted(reused)} were used in an earlier generation batch")
        return replace(
            self,
            kept=self.kept + tuple(found)[: self.missing],
            gen_batches=self.gen_batches + 1,
            counts=self.counts + count_groups(correct, groups, judged),
        )
