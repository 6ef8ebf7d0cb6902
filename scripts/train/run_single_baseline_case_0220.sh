#!/usr/bin/env bash
# The baseline of the influence ablation: the same run for a few steps without influence.
#
#   bash scripts/train/run_single_baseline_case_0220.sh [key=value ...]
#
# TOTAL_STEPS (default 2); ENGINE (default verl), N_GPUS (default 8) and others: launch.bash.
set -euo pipefail
ENGINE=${ENGINE:-verl}
N_GPUS=${N_GPUS:-8}
EXP_NAME=${EXP_NAME:-ablation-0220-baseline}
TOTAL_STEPS=${TOTAL_STEPS:-${INFLUENCE_TOTAL_STEPS:-2}}
source "$(dirname "${BASH_SOURCE[0]}")/launch.bash"
train qwen2.5_1.5b_math_influence_trace trainer.influence_trace.enable=False \
  trainer.val_before_train=False "data.val_files=[]" "$@"
