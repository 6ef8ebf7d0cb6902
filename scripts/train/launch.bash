# Shared by the launchers in this folder: turns environment variables into overrides, prints the command, runs it.
#
#   ENGINE       local or verl; each launcher says its default
#   N_GPUS       trainer.n_gpus_per_node, engine=verl only; each launcher says its default
#   NNODES       trainer.nnodes, engine=verl only
#   MODEL_PATH   folder or hub id of the model; default: the recipe's
#   TRAIN_FILES  prompts to train on, e.g. a.parquet or [a.parquet,b.parquet]; default: the recipe's
#   VAL_FILES    held-out prompts; default: the recipe's
#   TOTAL_STEPS  trainer.total_training_steps, e.g. 2 for a quick look; default: the recipe's
#   EXP_NAME     trainer.experiment_name; default: the recipe's
#   INFLUENCE_*  every knob of trainer.influence_trace, e.g. INFLUENCE_HESSIAN_MODE=identity; archer refuses others
#   ARCHER       the archer command; default: .venv/bin/archer of this checkout where there is one, else archer
#
# What is not set changes nothing. Arguments of the launcher come last and win: overrides, --dry-run,
# --print-config. VERL_PG_TIMEOUT_SECONDS reaches the run as it is. With WANDB_API_KEY
# set and not empty the run also logs to W&B (trainer.logger=[console,wandb]).

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

archer_command() {
  if [[ -n ${ARCHER:-} ]]; then
    echo "$ARCHER"
  elif [[ -x .venv/bin/archer ]]; then
    echo .venv/bin/archer
  else
    echo archer
  fi
}

# show COMMAND...: print a command as it could be typed
show() {
  printf '+'
  printf ' %q' "$@"
  printf '\n'
}

# run COMMAND...: print a command and become it
run() {
  show "$@"
  exec "$@"
}

# settings_of RECIPE: fill the array `settings` with the overrides that the environment asks for
settings_of() {
  local name knob
  settings=("engine=$ENGINE" "recipe=$1")
  if [[ $ENGINE == verl ]]; then
    settings+=("trainer.n_gpus_per_node=${N_GPUS:-1}" "trainer.nnodes=${NNODES:-1}")
  fi
  [[ -z ${MODEL_PATH:-} ]] || settings+=("actor_rollout_ref.model.path=$MODEL_PATH")
  [[ -z ${TRAIN_FILES:-} ]] || settings+=("data.train_files=$TRAIN_FILES")
  [[ -z ${VAL_FILES:-} ]] || settings+=("data.val_files=$VAL_FILES")
  [[ -z ${EXP_NAME:-} ]] || settings+=("trainer.experiment_name=$EXP_NAME")
  [[ -z ${TOTAL_STEPS:-} ]] || settings+=("trainer.total_training_steps=$TOTAL_STEPS")
  [[ -z ${WANDB_API_KEY:-} ]] || settings+=("trainer.logger=[console,wandb]")
  for name in "${!INFLUENCE_@}"; do
    # the first system's name for the length of a run
    if [[ $name == INFLUENCE_TOTAL_STEPS ]]; then
      [[ -n ${TOTAL_STEPS:-} || -z ${!name} ]] || settings+=("trainer.total_training_steps=${!name}")
      continue
    fi
    knob=${name#INFLUENCE_}
    [[ -z ${!name} ]] || settings+=("trainer.influence_trace.${knob,,}=${!name}")
  done
}

# train RECIPE [ARGUMENT...]
train() {
  local settings
  settings_of "$1"
  run "$(archer_command)" train "${settings[@]}" "${@:2}"
}

# ablate GRID RECIPE [ARGUMENT...]: --dry-run as the first argument lists the cases
ablate() {
  local settings grid=$1
  settings_of "$2"
  shift 2
  if [[ ${1:-} == --dry-run ]]; then
    shift
    set -- --list "$@"
  fi
  run "$(archer_command)" ablate run "$grid" "${settings[@]}" "$@"
}
