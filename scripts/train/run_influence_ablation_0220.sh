#!/usr/bin/env bash
# The influence ablation: output function x scope x Hessian mode, further forms without a Hessian, the baseline.
#
#   bash scripts/train/run_influence_ablation_0220.sh [--dry-run] [key=value ...] [--jobs N ...]
#
# ENGINE (default verl), N_GPUS (default 8), MODEL_PATH, TRAIN_FILES and others: launch.bash. --dry-run comes first
# and lists the cases. `archer ablate collect` makes the report.
set -euo pipefail
ENGINE=${ENGINE:-verl}
N_GPUS=${N_GPUS:-8}
source "$(dirname "${BASH_SOURCE[0]}")/launch.bash"
ablate influence_0220 qwen2.5_1.5b_math_influence_trace "$@"
