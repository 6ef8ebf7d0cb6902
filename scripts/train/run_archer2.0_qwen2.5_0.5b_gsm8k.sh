#!/usr/bin/env bash
# Qwen2.5-0.5B-Instruct on GSM8K, both traces on, one GPU of 24 GB.
#
#   bash scripts/train/run_archer2.0_qwen2.5_0.5b_gsm8k.sh [--dry-run] [key=value ...]
#
# ENGINE (default local), MODEL_PATH, TRAIN_FILES, VAL_FILES and others: launch.bash.
set -euo pipefail
ENGINE=${ENGINE:-local}
source "$(dirname "${BASH_SOURCE[0]}")/launch.bash"
train qwen2.5_0.5b_gsm8k "$@"
