// One state, one address: #step/group/response/token?run=name&further=settings. Whoever gets the address sees the same.

import { listInside, listOutside, otherInside, otherOutside, runNumber } from "./runnames.js";

const PLACE = ["step", "group", "response", "token"];
// Whatever an address says, these stay within what the page can show.
const LIMITS = { gamma: [0.33, 3.03], k: [1, 2000], run: [0, 9999] };
const DEFAULTS = {
  run: 0,
  left: "entropy",
  right: "influence",
  third: "paid", // of steps that hold what tokens were paid; "" hides the pane
  line: "third",
  pane: "both",
  scale: "step",
  grain: "token",
  gamma: 1,
  q: "",
  regex: 0,
  case: 0,
  by: "",
  lo: "",
  hi: "",
  table: "extremes",
  scope: "response",
  metric: "",
  order: "position",
  k: 20,
  rows: "row",
  verdict: "all",
  find: "",
  vs: "",
  beside: "",
  pool: "mean",
  zoom: "",
  unit: "sentence",
  rendered: 0,
  charts: "",
  metrics: "",
  log: 0,
  over: "",
  gorder: "group",
  mixed: 0,
  look: "",
  page: "",
  prompt: "",
  sq: "",
  smode: "word",
  scase: 0,
};
// Pages beside the levels; they keep the place they were opened from.
export const PAGES = ["prompt", "search"];

// `runs`: what the server holds; without them a run is its number, as in an exported page.
export function parse(hash, runs = []) {
  const [path, query = ""] = hash.replace(/^#/, "").split("?");
  const state = { ...DEFAULTS };
  const parts = path.split("/");
  let open = true;
  PLACE.forEach((name, index) => {
    const text = parts[index] ?? "";
    open = open && /^-?\d{1,15}$/.test(text);
    state[name] = open ? Number(text) : null;
  });
  for (const [name, value] of new URLSearchParams(query)) {
    if (!(name in DEFAULTS)) continue;
    if (name === "run" && runs.length) {
      state.run = runNumber(runs, value);
      state.wanted = value.slice(0, 300);
      continue;
    }
    if (typeof DEFAULTS[name] === "number") {
      const parsed = Number(value);
      const [low, high] = LIMITS[name] ?? [0, 1];
      if (Number.isFinite(parsed)) state[name] = Math.min(Math.max(parsed, low), high);
    } else {
      state[name] = value.slice(0, 2000);
    }
  }
  if (runs.length) state.vs = otherInside(runs, state.vs);
  if (runs.length) state.over = listInside(runs, state.over);
  return state;
}

export function format(state, runs = []) {
  const path = [];
  for (const name of PLACE) {
    if (state[name] === null) break;
    path.push(state[name]);
  }
  const query = new URLSearchParams();
  if (runs[state.run]) query.set("run", runs[state.run].name);
  for (const [name, value] of Object.entries(DEFAULTS)) {
    if (state[name] === value || (name === "run" && runs.length)) continue;
    const outside = name === "vs" ? otherOutside(runs, state.vs) : name === "over" ? listOutside(runs, state.over) : state[name];
    query.set(name, outside);
  }
  const text = query.toString();
  return `#${path.join("/")}${text ? `?${text}` : ""}`;
}

export class Store {
  constructor() {
    this.runs = [];
    this.state = parse(location.hash);
    this.listeners = [];
    this.timer = 0;
    this.written = []; // addresses of our own whose event is still to come; the state may be further by then
    window.addEventListener("hashchange", (event) => {
      const own = this.written.indexOf(new URL(event.newURL).hash);
      this.written.splice(0, own + 1);
      if (own >= 0 || location.hash.replace(/^#/, "") === format(this.state, this.runs).replace(/^#/, "")) return;
      this.state = parse(location.hash, this.runs);
      this.notify();
    });
  }

  // From now on addresses name runs. An exported page holds one run, and its address stays short.
  nameRuns(runs) {
    const first = !this.runs.length;
    this.runs = runs;
    if (first) this.state = parse(location.hash, runs);
  }

  subscribe(listener) {
    this.listeners.push(listener);
  }

  notify() {
    for (const listener of this.listeners) listener(this.state);
  }

  // Moving to another place makes an entry in the browser's history; changing a setting does not.
  go(change) {
    const before = this.state;
    this.state = { ...before, ...change };
    // Whoever goes to a place leaves the page that leads there.
    if (!("page" in change) && ["step", "vs", "group", "response"].some((name) => name in change)) this.state.page = "";
    const moved = ["run", "step", "group", "response", "page", "prompt"].some((name) => before[name] !== this.state[name]);
    this.notify();
    clearTimeout(this.timer);
    if (moved) this.write((address) => (location.hash = address));
    // With the whole address: inside a notebook's frame a bare #fragment would be one of the notebook's page.
    else this.timer = setTimeout(() => this.write((address) => location.replace(location.href.split("#")[0] + address)), 150);
  }

  // A place given as an address, as if the page had been opened there.
  open(address) {
    this.state = parse(address, this.runs);
    this.notify();
    this.write((text) => location.replace(location.href.split("#")[0] + text));
  }

  write(put) {
    const before = location.hash;
    put(format(this.state, this.runs));
    if (location.hash !== before) this.written.push(location.hash);
  }
}
