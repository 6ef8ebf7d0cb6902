#!/usr/bin/env bash
# Make data/dapo-math-17k-train.parquet anew from open-r1/DAPO-Math-17k-Processed on the hub.
#
#   bash scripts/train/prepare_dapo_math17k_openr1.sh [--dry-run] [FILE] [--limit N ...]
#
# A downloaded FILE takes the place of the hub. Other arguments are those of `archer data prepare`. --dry-run comes
# first and only prints the command.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/launch.bash"
action=run
if [[ ${1:-} == --dry-run ]]; then
  action=show
  shift
fi
$action "$(archer_command)" data prepare dapo-math-17k --config all --overwrite "$@"
