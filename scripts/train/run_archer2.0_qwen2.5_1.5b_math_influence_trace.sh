#!/usr/bin/env bash
# The math run with entropy and token influence; INFLUENCE_* set the knobs.
#
#   bash scripts/train/run_archer2.0_qwen2.5_1.5b_math_influence_trace.sh [--dry-run] [key=value ...]
#
# ENGINE (default verl), N_GPUS (default 8), MODEL_PATH, TRAIN_FILES, VAL_FILES and others: launch.bash.
set -euo pipefail
ENGINE=${ENGINE:-verl}
N_GPUS=${N_GPUS:-8}
source "$(dirname "${BASH_SOURCE[0]}")/launch.bash"
train qwen2.5_1.5b_math_influence_trace "$@"
