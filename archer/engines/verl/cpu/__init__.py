"""verl on a machine without accelerator, for tests and trials alone: platform, engines, rollout."""

ROLLOUT = "transformers_cpu"
"""Name of the rollout backend."""
