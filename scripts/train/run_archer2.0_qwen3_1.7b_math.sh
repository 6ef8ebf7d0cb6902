#!/usr/bin/env bash
# Qwen3-1.7B on competition math, 64 prompts x 16 responses a step.
#
#   bash scripts/train/run_archer2.0_qwen3_1.7b_math.sh [--dry-run] [key=value ...]
#
# ENGINE (default verl), N_GPUS (default 8), MODEL_PATH, TRAIN_FILES, VAL_FILES and others: launch.bash.
set -euo pipefail
ENGINE=${ENGINE:-verl}
N_GPUS=${N_GPUS:-8}
source "$(dirname "${BASH_SOURCE[0]}")/launch.bash"
train qwen3_1.7b_math "$@"
