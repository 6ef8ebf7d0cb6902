"""A verl trainer of your own, with Archer's traces: verl's entry point, verl's overrides, your changes.

    python examples/own_verl_trainer.py data.train_files=... actor_rollout_ref.model.path=...
    archer view runs/own_verl_trainer

`MyTrainer` stands for what you have; the two marked parts are all that is added.
"""

from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from archer.integrations.verl import ArcherVerlMixin, Tracing, run_main  # <-


class MyTrainer(PPOTrainerSync):
    """It counts the steps in which no response at all was right."""

    hopeless = 0

    def _compute_advantage(self, batch, metrics):
        batch = super()._compute_advantage(batch, metrics)
        self.hopeless += metrics.get("critic/score/max", 1.0) <= 0
        metrics["mine/hopeless_steps"] = float(self.hopeless)
        return batch


class Traced(ArcherVerlMixin, MyTrainer):  # <-
    """The same with both traces."""

    archer = Tracing(output_dir="runs/own_verl_trainer")


if __name__ == "__main__":
    run_main(Traced)  # <- in the place of verl.trainer.main_ppo
