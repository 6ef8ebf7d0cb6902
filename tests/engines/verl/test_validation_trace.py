"""The trace of a validation on verl: what the queue holds, in the order of the dataset, entropies unknown."""

import numpy as np
import pytest
import torch
from transfer_queue import KVBatchMeta

from archer.config.actor import actor_config
from archer.engines.verl import validation
from archer.engines.verl.algorithms import RankLoss
from archer.engines.verl.validation import ValidationRecorder


def info(correct: bool, tokens: int) -> dict:
    """What the reward manager says of a response."""
    return {
        "reward_extra_info": {
            **{"acc": float(correct), "score": float(correct), "shaped": 0.5, "tokens": float(tokens)},
            **{"finished": float(tokens < 4), "failure": "", "detail": "", "extracted": "7", "reason": "so"},
            **{"source": "math", "truth": "8"},
        }
    }


class Queue:
    """verl's queue: fields by key."""

    def __init__(self, fields: dict[str, dict]) -> None:
        self.fields = fields

    def kv_batch_get(self, keys, partition_id, select_fields):
        def column(name: str):
            values = [self.fields[key][name] for key in keys]
            jagged = torch.is_tensor(values[0])
            return torch.nested.as_nested_tensor(values, layout=torch.jagged) if jagged else values

        return {name: column(name) for name in select_fields if name in self.fields[keys[0]]}


@pytest.fixture
def queue(monkeypatch) -> Queue:
    """Two responses to each of three prompts, which were finished in another order."""
    fields = {}
    for prompt, uid in ((2, "c"), (0, "a"), (1, "b")):
        for session in (1, 0):
            length = 2 + prompt
            fields[f"{uid}_{session}_0"] = {
                "prompts": torch.arange(prompt + 1),
                "responses": torch.arange(length) + 10 * prompt + session,
                "response_mask": torch.ones(length),
                "rollout_log_probs": -torch.arange(length, dtype=torch.float32),
                "extra_fields": info(session == 0, length),
                "index": prompt,
            }
    made = Queue(fields)
    monkeypatch.setattr(validation, "tq", made)
    return made


def batch(*keys: str) -> KVBatchMeta:
    return KVBatchMeta(partition_id="val", keys=list(keys), tags=[{} for _ in keys])


def test_responses_stand_in_the_order_of_the_dataset(queue):
    recorder = ValidationRecorder(limit=100)
    recorder.observe(batch(*queue.fields))
    step = recorder.step()
    assert step.sample_index.tolist() == step.group_id.tolist() == [0, 0, 1, 1, 2, 2]
    assert step.accepted.tolist() == [True, False] * 3
    assert step.uid.tolist()[::2] == ["prompt0", "prompt1", "prompt2"]
    assert [step.prompt(row).tolist() for row in (0, 4)] == [[0], [0, 1, 2]]
    assert step.responses[3][:3].tolist() == [11, 12, 13]
    assert (step.reason[0], step.extracted_answer[0], step.ground_truth[0]) == ("so", "7", "8")
    assert step.truncated.tolist() == [False] * 4 + [True] * 2


def test_entropies_are_said_to_be_unknown_and_log_probs_are_the_rollouts(queue):
    recorder = ValidationRecorder(limit=100)
    recorder.observe(batch(*queue.fields))
    step = recorder.step()
    assert np.isnan(step.entropies[step.response_mask]).all()
    assert step.log_probs[4][:4].tolist() == step.rollout_log_probs[4][:4].tolist() == [0, -1, -2, -3]


def test_batches_follow_each_other_up_to_the_limit(queue):
    recorder = ValidationRecorder(limit=5)
    for keys in (["a_1_0", "a_0_0"], ["c_0_0", "b_0_0", "b_1_0", "c_1_0"]):
        recorder.observe(batch(*keys))
    recorder.observe(batch("a_0_0"))
    step = recorder.step()
    assert step.response_index.tolist() == [0, 1, 2, 3, 4]
    assert step.group_id.tolist() == [0, 0, 1, 1, 2]
    recorder.begin()
    assert recorder.step() is None


def micro_batch(rows: list[int], lengths: list[int], value: float) -> tuple[dict, dict]:
    def jagged(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    ones = [torch.ones(length) for length in lengths]
    names = ("response_mask", "entropy", "old_log_probs", "advantages")
    data = {name: jagged(ones) for name in names} | {"row_id": torch.tensor(rows)}
    data |= {"batch_num_tokens": 9, "global_batch_size": 2, "dp_size": 1}
    return {"log_probs": [value * one for one in ones]}, data


def test_a_rank_keeps_the_log_probs_of_the_first_loss_over_each_row(monkeypatch):
    monkeypatch.setattr(
        "archer.engines.verl.algorithms.no_padding_2_padding",
        lambda values, data: torch.nn.utils.rnn.pad_sequence(values, batch_first=True),
    )
    loss = RankLoss(actor_config(), 8)
    loss.begin(keeps=True)
    loss(*micro_batch([4, 2], [3, 1], 0.5))
    loss(*micro_batch([7], [2], 0.25))
    loss(*micro_batch([2, 7], [1, 2], 9.0))  # the next epoch
    kept = {row: values.tolist() for row, values in loss.log_probs().items()}
    assert kept == {4: [0.5] * 3, 2: [0.5], 7: [0.25] * 2}
    loss.begin()
    loss(*micro_batch([4], [3], 0.5))
    assert loss.log_probs() == {}, "no trace asked"
