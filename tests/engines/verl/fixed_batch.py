"""One step's responses, the same for every engine and every number of ranks: four groups of four."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from archer.algorithms.token_credit.config import token_credit_config
from archer.config.actor import ActorConfig, LossChoice, OptimConfig, actor_config
from archer.data.builtin import tiny_reasoner_path
from archer.data.prompts import Prompt
from archer.engines.local.loss import Experience
from archer.generation.batch import Responses
from archer.generation.judge import Judged
from archer.influence import Group, InfluenceConfig
from archer.rewards import RewardResult

MODEL = str(tiny_reasoner_path())
GROUPS, EACH, VOCABULARY, LONGEST = 4, 4, 20, 24
CORRECT = [
    True,
    False,
    False,
    True,
    False,
    True,
    False,
    False,
    False,
    False,
    False,
    False,
    True,
    True,
    False,
    True,
]
LR = 1e-3


TRAINING_LOSS = InfluenceConfig(enable=True, projection_dim_factor=4)


@dataclass(frozen=True)
class Case:
    """How the batch is updated and traced."""

    influence: InfluenceConfig = TRAINING_LOSS
    loss_mode: str = "vanilla"
    mini_batches: int = 1
    off_policy: bool = False  # old log-probs of another policy: ratios are clipped
    packed: bool = True
    checkpointed: bool = False
    dynamic: bool = False  # micro-batches by tokens
    pad_to_length: bool = False
    dtype: str = "fp32"
    clip_ratio: float = 0.2
    lora_rank: int = 0
    shifted: bool = False  # the negative control: every position taken for its neighbour
    portion: int | None = None  # tokens of a portion; None: mini-batches are not divided
    fused: bool = False  # log-probs by verl's fused kernels, without logits
    factors: bool = False  # keep the captured factors instead of scoring
    credit: bool = False  # nothing is updated: what token credit reads


LOG_PROB = InfluenceConfig(
    enable=True, projection_dim_factor=4, output_function="log_prob", exclude_self_response=True
)
HEAD = InfluenceConfig(enable=True, projection="none", module_name_filter=("lm_head",))
CASES = {
    "packed": Case(),
    "dynamic batch size": Case(dynamic=True),
    "padded and checkpointed": Case(packed=False, checkpointed=True),
    "padded to a bucket": Case(pad_to_length=True),
    "two mini-batches": Case(mini_batches=2),
    "another objective, rescaled": Case(influence=LOG_PROB),
    "another objective, second backward": Case(influence=LOG_PROB, off_policy=True, mini_batches=2),
}
CASES |= {
    "portions": Case(portion=0),
    "portions of two groups, dynamic batch size": Case(portion=150, dynamic=True),
    "portions, padded, second backward": Case(influence=LOG_PROB, off_policy=True, portion=0, packed=False),
    "portions of two mini-batches": Case(mini_batches=2, portion=0),
}
LOSSES = {mode: Case(loss_mode=mode, off_policy=True) for mode in ("aspo", "dual_token", "gspo", "cispo")}
CASES |= LOSSES
BF16 = "bf16"  # rounding alone moves the ratio of unlikely tokens out of the usual clip range
CANARY = {
    "canary packed": Case(influence=HEAD, factors=True),
    "canary dynamic": Case(influence=HEAD, factors=True, dynamic=True),
    "canary padded": Case(influence=HEAD, factors=True, packed=False, checkpointed=True),
    "canary shifted": Case(influence=HEAD, factors=True, shifted=True),
}
CREDIT = {"credit": Case(credit=True), "credit, padded": Case(credit=True, packed=False)}
CREDIT_TEMPERATURE = 0.7
CREDIT_MODES = {
    "head": token_credit_config(mode="nthr", projection_dim=8),
    "modules": token_credit_config(mode="influence", projection_dim=8),
}
FUSED = {  # last: verl exchanges the forward of the model's class for the rest of the process
    "fused": Case(fused=True),
    "fused, padded, second backward": Case(influence=LOG_PROB, off_policy=True, packed=False, fused=True),
    "fused, portions": Case(fused=True, portion=0),
}
ALL = {
    **CASES,
    **CANARY,
    **CREDIT,
    BF16: Case(dtype="bf16", clip_ratio=5.0),
    "lora": Case(lora_rank=4, packed=False),
    **FUSED,
}


def responses() -> Responses:
    """Sixteen responses of random tokens; the last group's prompt is longer."""
    generator = torch.Generator().manual_seed(3)

    def draw(low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    prompts = [tuple(draw(3, VOCABULARY, (length,)).tolist()) for length in (6, 9, 7, 12)]
    rows = GROUPS * EACH
    lengths = draw(5, LONGEST + 1, (rows,))
    return Responses(
        prompts=tuple(
            Prompt(row // EACH, (), prompts[row // EACH], "arithmetic", "1", {}) for row in range(rows)
        ),
        tokens=draw(3, VOCABULARY, (rows, int(lengths.max()))),
        mask=torch.arange(int(lengths.max())) < lengths[:, None],
        log_probs=torch.zeros(rows, int(lengths.max())),
        finished=torch.ones(rows, dtype=torch.bool),
    )


def advantages(mask: Tensor) -> Tensor:
    """[N, L] constant within a response; 0 in the group that is all wrong."""
    values = torch.tensor([1.0 if right else -0.5 for right in CORRECT])
    values[8:12] = 0.0
    return torch.where(mask, values[:, None], 0.0)


def experience(old_log_probs: Tensor, entropy: Tensor) -> Experience:
    """What the local engine's update is given."""
    batch = responses()
    judged = Judged(
        batch,
        torch.arange(GROUPS).repeat_interleave(EACH),
        tuple(RewardResult.of_verdict(right) for right in CORRECT),
        torch.zeros(len(batch)),
    )
    return Experience(judged, advantages(batch.mask), old_log_probs, None, entropy)


def groups() -> list[Group]:
    """The prompt groups."""
    return [
        Group(str(g), tuple(range(g * EACH, (g + 1) * EACH)), tuple(CORRECT[g * EACH : (g + 1) * EACH]))
        for g in range(GROUPS)
    ]


def actor(case: Case) -> ActorConfig:
    """The update's settings."""
    return replace(
        actor_config(),
        policy_loss=LossChoice(loss_mode=case.loss_mode),
        clip_ratio=case.clip_ratio,
        ppo_mini_batch_size=GROUPS // case.mini_batches,
        ppo_max_token_len_per_gpu=90,
        optim=OptimConfig(lr=LR, weight_decay=0.01),
    )
