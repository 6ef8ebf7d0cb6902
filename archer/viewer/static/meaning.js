// What the colours of a metric mean, in one sentence, and its unit.

const NO_UNIT = "No unit: a product of gradients, to be compared within a group.";

const MEANINGS = {
  entropy: ["Stronger colour: the policy was less sure which token to write here.", "In nats, over the whole vocabulary."],
  log_prob: ["Stronger colour: the token was less probable under the policy in training.", "In nats."],
  rollout_log_prob: ["Stronger colour: the token was less probable when it was sampled.", "In nats."],
  log_prob_difference: ["Red: training gives the token more probability than the rollout did; blue: less. Zero everywhere is right.", "In nats."],
  ratio_change: ["Red: the update has made the token more probable than at sampling; blue: less.", "Importance ratio minus one."],
  clipped: ["Red: clipped at the high side; blue: at the low side. A clipped token adds nothing to the gradient.", ""],
  loss_weight: ["Stronger colour: the token's term counts more in the loss.", "A factor."],
  credit: ["Stronger colour: the token was paid more of its response's advantage.", "A factor: 1 pays it in full, 0 nothing."],
  paid: ["Red: this token was reinforced; blue: it was penalised; no colour: it was paid nothing.", "Advantage times credit, in units of the normalised reward."],
  credit_score: ["Red: writing this token more often favours the accepted responses of its prompt; blue: the opposite. The credit was made from it.", NO_UNIT],
  advantage: ["Red: the token is reinforced; blue: it is discouraged.", "In units of the reward after normalisation."],
};

// `reading`: what the server says of the sign of the run's influence
export function meaningOf(metric, ramp, reading) {
  if (metric === "influence") return [reading, NO_UNIT];
  return MEANINGS[metric] ?? [ramp === "diverging" ? "Red: above zero; blue: below." : "Stronger colour: further from zero.", ""];
}

export function readingOf(library, run) {
  const { traces } = library.runs[run];
  return (traces.find((trace) => trace.kind === "influence") ?? traces[0]).reading;
}
