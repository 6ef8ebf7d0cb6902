#!/usr/bin/env bash
# The cases of the influence ablation that go without a Hessian beyond the grid: other objectives and norms.
#
#   bash scripts/train/run_influence_ablation_0220_extra_nohessian.sh [--dry-run] [key=value ...] [--jobs N ...]
#
# ENGINE (default verl), N_GPUS (default 8), MODEL_PATH, TRAIN_FILES and others: launch.bash. --dry-run comes first
# and lists the cases.
set -euo pipefail
ENGINE=${ENGINE:-verl}
N_GPUS=${N_GPUS:-8}
source "$(dirname "${BASH_SOURCE[0]}")/launch.bash"
ablate influence_0220 qwen2.5_1.5b_math_influence_trace "$@" --only 'nohessian-*'
