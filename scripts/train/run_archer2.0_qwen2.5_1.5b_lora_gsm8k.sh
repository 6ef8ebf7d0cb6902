#!/usr/bin/env bash
# Qwen2.5-1.5B-Instruct on GSM8K with LoRA, both traces on, one GPU of 24 GB.
#
#   bash scripts/train/run_archer2.0_qwen2.5_1.5b_lora_gsm8k.sh [--dry-run] [key=value ...]
#
# ENGINE (default local), MODEL_PATH, TRAIN_FILES, VAL_FILES and others: launch.bash.
set -euo pipefail
ENGINE=${ENGINE:-local}
source "$(dirname "${BASH_SOURCE[0]}")/launch.bash"
train qwen2.5_1.5b_lora_gsm8k "$@"
