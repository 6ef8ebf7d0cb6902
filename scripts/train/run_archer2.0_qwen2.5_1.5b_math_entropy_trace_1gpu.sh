#!/usr/bin/env bash
# The entropy-trace run on one GPU.
#
#   bash scripts/train/run_archer2.0_qwen2.5_1.5b_math_entropy_trace_1gpu.sh [--dry-run] [key=value ...]
#
# ENGINE (default local), N_GPUS (default 1), MODEL_PATH, TRAIN_FILES, VAL_FILES and others: launch.bash.
set -euo pipefail
ENGINE=${ENGINE:-local}
N_GPUS=${N_GPUS:-1}
source "$(dirname "${BASH_SOURCE[0]}")/launch.bash"
train qwen2.5_1.5b_math_entropy_trace_1gpu "$@"
