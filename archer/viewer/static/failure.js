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

// An address may name a run that this viewer does not hold, or several: the ones it may mean are offered.
export function missingRun(state, runs, pick) {
  const wanted = visible(state.wanted ?? String(state.run));
  const named = runs.filter((run) => run.own_name === state.wanted);
  const choices = (named.length ? named : runs).map((run) => h("li", {}, button(visible(run.name), () => pick(run.run, named.length > 0), { class: "rowlink" })));
  const said = named.length ? `${named.length} runs of this viewer are named ${wanted}. Choose one:` : `This viewer holds no run ${wanted}. It holds:`;
  return h("section", { class: "view failure", role: "alert" }, h("h1", {}, "Nothing to show here"), h("p", { class: "notice damaged" }, said), h("ul", {}, choices));
}
