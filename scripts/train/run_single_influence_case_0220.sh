#!/usr/bin/env bash
# One case of the influence ablation: the influence-trace run for a few steps, named after its knobs.
#
#   INFLUENCE_HESSIAN_MODE=identity bash scripts/train/run_single_influence_case_0220.sh [key=value ...]
#
# TOTAL_STEPS (default 2); ENGINE (default verl), N_GPUS (default 8), INFLUENCE_* and others: launch.bash.
set -euo pipefail
ENGINE=${ENGINE:-verl}
N_GPUS=${N_GPUS:-8}
INFLUENCE_OUTPUT_FUNCTION=${INFLUENCE_OUTPUT_FUNCTION:-log_prob_advantage}
INFLUENCE_ACCEPTED_REJECTED_SCOPE=${INFLUENCE_ACCEPTED_REJECTED_SCOPE:-per_prompt}
INFLUENCE_HESSIAN_MODE=${INFLUENCE_HESSIAN_MODE:-inverse}
case=$INFLUENCE_OUTPUT_FUNCTION-$INFLUENCE_ACCEPTED_REJECTED_SCOPE-$INFLUENCE_HESSIAN_MODE
EXP_NAME=${EXP_NAME:-ablation-0220-$case}
TOTAL_STEPS=${TOTAL_STEPS:-${INFLUENCE_TOTAL_STEPS:-2}}
source "$(dirname "${BASH_SOURCE[0]}")/launch.bash"
train qwen2.5_1.5b_math_influence_trace trainer.val_before_train=False "data.val_files=[]" "$@"
