#!/usr/bin/env bash
# Make data/livecodebench-deepcoder-{train,test}.parquet: LiveCodeBench's problems as DeepCoder divides them, by date.
#
#   bash scripts/train/prepare_livecodebench_deepcoder.sh [--dry-run] [--limit N ...]
#
# Arguments are those of `archer data prepare`. --dry-run comes first and only prints the commands.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/launch.bash"
dry=
if [[ ${1:-} == --dry-run ]]; then
  dry=1
  shift
fi
for split in train test; do
  prepare=("$(archer_command)" data prepare livecodebench agentica-org/DeepCoder-Preview-Dataset --config lcbv5
    --split "$split" --out "data/livecodebench-deepcoder-$split.parquet" --overwrite "$@")
  show "${prepare[@]}"
  [[ -n $dry ]] || "${prepare[@]}"
done
