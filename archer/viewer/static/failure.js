// What stands on the page when something cannot be shown; everything else stays in reach.

import { button, h, withCode } from "./dom.js";
import { visible } from "./format.js";

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function failurePage(error, state) {
  const damaged = error.status === 422 && state.step !== null;
  const advice = damaged
    ? "The other steps are not affected. `archer trace check` lists everything that is damaged."
    : state.step !== null
      ? "Choose a step in the timeline, or go back to the run."
      : "Check the folder given to `archer view` and reload this page.";
  return h("section", { class: "view failure", role: "alert" }, h("h1", {}, damaged ? `Step ${state.step} cannot be read` : "Nothing to show here"), h("p", { class: "notice damaged" }, error.message), h("p", {}, withCode(advice)));
}

// An address may name a run that this viewer does not hold: the ones it holds are offered.
export function missingRun(state, runs, pick) {
  const wanted = visible(state.wanted ?? String(state.run));
  const choices = runs.map((run) => h("li", {}, button(visible(run.name), () => pick(run.run), { class: "rowlink" })));
  return h("section", { class: "view failure", role: "alert" }, h("h1", {}, "Nothing to show here"), h("p", { class: "notice damaged" }, `This viewer holds no run ${wanted}. It holds:`), h("ul", {}, choices));
}
