"""The whole configuration of a training run: the sections that the rooms declare, put together."""

from dataclasses import dataclass
from pathlib import Path

from archer.algorithms.config import AlgorithmConfig
from archer.config.actor import ActorRolloutRefConfig
from archer.config.parse import flat
from archer.config.trainer import EngineConfig, TrainerConfig
from archer.data.config import DataConfig
from archer.plugins import extended
from archer.rewards.config import RewardConfig
from archer.settings import Section, section


@dataclass(frozen=True)
class TrainConfig(Section):
    """A training run."""

    engine: EngineConfig = section(EngineConfig)
    data: DataConfig = section(DataConfig)
    actor_rollout_ref: ActorRolloutRefConfig = section(ActorRolloutRefConfig)
    algorithm: AlgorithmConfig = section(lambda: extended(AlgorithmConfig)())
    reward: RewardConfig = section(RewardConfig)
    trainer: TrainerConfig = section(TrainerConfig)

    @property
    def run_dir(self) -> Path:
        """Folder that everything of this run is written to."""
        if self.trainer.default_local_dir is not None:
            return Path(self.trainer.default_local_dir)
        return Path("output") / self.trainer.project_name / self.trainer.experiment_name

    @property
    def sequence_parallel_size(self) -> int:
        """Devices of engine=verl that share the tokens of a sequence (Ulysses)."""
        own, actor = flat(self.engine.verl), "actor_rollout_ref.actor"
        sections = (actor, f"{actor}.fsdp_config")
        return max(own.get(f"{section}.ulysses_sequence_parallel_size") or 1 for section in sections)

    @property
    def needs_reference(self) -> bool:
        """Whether a frozen copy of the initial policy is kept for a KL term."""
        return self.actor_rollout_ref.actor.use_kl_loss or self.algorithm.use_kl_in_reward
