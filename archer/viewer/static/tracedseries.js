// What the trace itself says of every step: the series of its manifest.

import { number, percent } from "./format.js";

export const TRACED = [
  ["mean_reward", "Mean reward", number],
  ["accepted_share", "Accepted share", percent],
  ["mean_entropy", "Mean entropy (nats)", number],
  ["mean_abs_influence", "Mean |influence|", number],
  ["mean_response_length", "Mean response length", number],
  ["mean_log_prob", "Mean log-prob", number],
];
