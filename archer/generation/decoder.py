"""Decoding on CUDA: one recorded graph a token, slots that are refilled as responses end.

Every step of a batch (forward, drawing, bookkeeping) is one CUDA graph on fixed memory, so that the program
launches one thing a token and never waits for the device but to look, every few steps, which responses have
ended. Then ended ones leave: their slots go to responses that wait, or the batch shrinks to a smaller graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from archer.data.prompts import Prompt
from archer.generation.batch import Responses, RolloutLimits
from archer.generation.lines import Begun, Lines
from archer.generation.packed import Packing
from archer.generation.sampling import SampleStreams, SamplingParams, sample_by_blocks, uniform_at
from archer.generation.slots import SlotCache, prompt_places

LOOK_EVERY = 16  # steps between two looks at which responses have ended
REFILL_SHARE = 0.125  # of the slots have to be free before waiting responses are let in
PREFILL_TOKENS = 32768  # prompt tokens that are read at a time
SMALLEST = 8  # lines of the smallest graph


@dataclass(frozen=True)
class _Waiting:
    """A response that has not begun: its number, its prompt's, and the name of its random stream."""

    row: int
    prompt: int
    stream: int


class Decoder:
    """Samples responses from a model whose attention is packed (`generation/packed.py`)."""

    def __init__(
        self,
        model: PreTrainedModel,
        limits: RolloutLimits,
        stop_ids: Tensor,
        pad_id: int,
        graphs: bool = True,
    ) -> None:
        self.model, self.limits, self.stop_ids, self.pad_id = model, limits, stop_ids, pad_id
        self.device = stop_ids.device
        self.graphs = graphs and self.device.type == "cuda"
        # made at once and kept, for recorded graphs know where it is: what is free is what others may take
        self._cache = SlotCache(
            model, limits.max_num_seqs, limits.max_prompt_length + limits.max_response_length
        )
        self._lines = Lines(limits.max_num_seqs, limits.max_response_length, self.device)
        self._recorded: dict[tuple[int, SamplingParams], Callable[[], None]] = {}
        self._pool: Any = None  # memory that all graphs share

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Prompt], n: int, params: SamplingParams, streams: SampleStreams
    ) -> Responses:
        """Return n responses per prompt, those of a prompt in consecutive rows."""
        cache, lines = self._cache, self._lines
        out = _Results(len(prompts) * n, self.limits.max_response_length, self.device)
        number = torch.arange(len(prompts) * n)
        names = streams.draws(number // n, number % n).names.tolist()
        waiting = [_Waiting(row, row // n, name) for row, name in enumerate(names)]
        active: list[Begun] = []  # in the order of their lines
        free = list(range(cache.slots))
        while active or waiting:
            going = lines.going[: len(active)].tolist()  # the one moment at which the device is waited for
            ended = [begun for begun, goes in zip(active, going, strict=True) if not goes]
            kept = [line for line, goes in enumerate(going) if goes]
            out.take(lines, ended)
            free += [begun.slot for begun in ended]
            begun: list[Begun] = []
            if waiting and (len(free) >= REFILL_SHARE * cache.slots or not kept):
                chosen, waiting = waiting[: len(free)], waiting[len(free) :]
                begun = self._begin(prompts, chosen, free[: len(chosen)], cache)
                free = free[len(chosen) :]
            if ended or begun:
                lines.arrange(kept, begun)
                active = [active[line] for line in kept] + begun
            if active:
                step = self._step(self._lines_for(len(active)), params, cache, lines)
                for _ in range(LOOK_EVERY):
                    step()
        return out.responses(tuple(prompt for prompt in prompts for _ in range(n)), self.pad_id)

    def _begin(
        self, prompts: Sequence[Prompt], chosen: list[_Waiting], slots: list[int], cache: SlotCache
    ) -> list[Begun]:
        """Read each prompt once, all but its last token, into the slots of its responses."""
        begun = []
        members: dict[int, list[int]] = {}  # prompt -> slots
        for waiting, slot in zip(chosen, slots, strict=True):
            ids = prompts[waiting.prompt].token_ids
            begun.append(Begun(waiting.row, slot, ids[-1], len(ids) - 1, waiting.stream))
            members.setdefault(waiting.prompt, []).append(slot)
        part: list[int] = []
        tokens = 0
        for prompt in members:
            length = len(prompts[prompt].token_ids) - 1
            if part and tokens + length > PREFILL_TOKENS:
                self._read(prompts, part, members, cache)
                part, tokens = [], 0
            if length:
                part.append(prompt)
                tokens += length
        if part:
            self._read(prompts, part, members, cache)
        return begun

    def _read(
        self, prompts: Sequence[Prompt], part: list[int], members: dict[int, list[int]], cache: SlotCache
    ) -> None:
        """Run some prompts through the model, packed; their keys and values go to their slots."""
        ids = [prompts[prompt].token_ids[:-1] for prompt in part]
        lengths = [len(line) for line in ids]
        pairs = [(place, slot) for place, prompt in enumerate(part) for slot in members[prompt]]
        places, slots = zip(*pairs, strict=True)
        source, target = prompt_places(lengths, places, slots, cache.positions)
        cache.write(target.to(self.device), source.to(self.device))
        packing = Packing.of(torch.tensor(lengths), self.device)
        flat = torch.tensor([token for line in ids for token in line], device=self.device)
        # Keys and values are all that is wanted, so the head does not run.
        self.model.base_model(
            input_ids=flat[None], past_key_values=cache, use_cache=True, **packing.arguments
        )

    def _lines_for(self, count: int) -> int:
        """Lines of the graph for a number of responses: a power of two, or all slots."""
        return min(self.limits.max_num_seqs, max(SMALLEST, 1 << (count - 1).bit_length()))

    def _step(self, size: int, params: SamplingParams, cache: SlotCache, lines: Lines) -> Callable[[], None]:
        """One token for each of the first `size` lines, as a call that only launches it."""

        def step() -> None:
            slot, position = lines.slot[:size], lines.position[:size]
            cache.write(slot * cache.positions + position)
            logits = self.model(
                input_ids=lines.token[:size, None],
                position_ids=position[:, None],
                past_key_values=cache,
                use_cache=True,
                cu_seq_lens_q=lines.ends[: size + 1],
                cu_seq_lens_k=torch.nn.functional.pad(slot * cache.positions, (0, 1)).int(),
                max_length_q=1,
                max_length_k=cache.positions,
                used=torch.where(lines.going[:size], position + 1, 0).int(),
            ).logits[:, -1]
            drawn = sample_by_blocks(logits, params, uniform_at(lines.stream[:size], lines.count[:size]))
            lines.record(size, *drawn, self.stop_ids)

        if not self.graphs:
            return step
        key = (size, params)
        if key not in self._recorded:
            self._recorded[key] = self._record(step, lines)
        return self._recorded[key]

    def _record(self, step: Callable[[], None], lines: Lines) -> Callable[[], None]:
        """Record a step as a graph. What it needs to have run once before runs with no line going."""
        going = lines.going.clone()
        lines.going.zero_()  # so that the trial changes nothing but scrap
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            step()
        self._pool = graph.pool()
        lines.going.copy_(going)
        return graph.replay


class _Results:
    """Everything sampled in one call, one row a response, on the device until it is complete."""

    def __init__(self, rows: int, length: int, device: torch.device) -> None:
        self.tokens = torch.zeros(rows, length, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(rows, length, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        self.finished = torch.zeros(rows, dtype=torch.bool, device=device)

    def take(self, lines: Lines, ended: list[Begun]) -> None:
        """Copy what lies in the slots of responses that have ended."""
        if not ended:
            return
        device = self.tokens.device
        row, slot = torch.tensor([(begun.row, begun.slot) for begun in ended], device=device).unbind(1)
        for mine, theirs in (
            (self.tokens, lines.tokens),
            (self.log_probs, lines.log_probs),
            (self.lengths, lines.lengths),
            (self.finished, lines.finished),
        ):
            mine[row] = theirs[slot]

    def responses(self, prompts: tuple[Prompt, ...], pad_id: int) -> Responses:
        """Return it all on the CPU, cut to the longest response."""
        lengths = self.lengths.cpu()
        longest = int(lengths.max())
        mask = torch.arange(longest) < lengths[:, None]
        return Responses(
            prompts=prompts,
            tokens=torch.where(mask, self.tokens[:, :longest].cpu(), pad_id),
            mask=mask,
            log_probs=torch.where(mask, self.log_probs[:, :longest].cpu(), 0.0),
            finished=self.finished.cpu(),
        )
