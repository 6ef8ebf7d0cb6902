#!/usr/bin/env bash
# SmolLM2-135M-Instruct on GSM8K, both traces on, one GPU of 12 GB.
#
#   bash scripts/train/run_archer2.0_smollm2_135m_gsm8k.sh [--dry-run] [key=value ...]
#
# ENGINE (default local), MODEL_PATH, TRAIN_FILES, VAL_FILES and others: launch.bash.
set -euo pipefail
ENGINE=${ENGINE:-local}
source "$(dirname "${BASH_SOURCE[0]}")/launch.bash"
train smollm2_135m_gsm8k "$@"
