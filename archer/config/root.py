"""The whole configuration of a training run and the rules that span sections."""

from dataclasses import dataclass
from pathlib import Path

from archer.config.algorithm import AlgorithmConfig
from archer.config.data import DataConfig
from archer.config.knob import section
from archer.config.model import ActorRolloutRefConfig
from archer.config.reward import RewardSection
from archer.config.trainer import EngineConfig, TrainerConfig


@dataclass(frozen=True)
class TrainConfig:
    """A training run."""

    engine: EngineConfig = section(EngineConfig)
    data: DataConfig = section(DataConfig)
    actor_rollout_ref: ActorRolloutRefConfig = section(ActorRolloutRefConfig)
    algorithm: AlgorithmConfig = section(AlgorithmConfig)
    reward: RewardSection = section(RewardSection)
    trainer: TrainerConfig = section(TrainerConfig)

    @property
    def run_dir(self) -> Path:
        """Folder that everything of this run is written to."""
        if self.trainer.default_local_dir is not None:
            return Path(self.trainer.default_local_dir)
        return Path("output") / self.trainer.project_name / self.trainer.experiment_name

    @property
    def needs_reference(self) -> bool:
        """Whether a frozen copy of the initial policy is kept for a KL term."""
        return self.actor_rollout_ref.actor.use_kl_loss or self.algorithm.use_kl_in_reward
