// Where the data comes from: the server, or the blocks inside an exported page.

import { ApiError } from "./failure.js";
import { EmbeddedSource } from "./embedded.js";
import { responsesOf, unpack } from "./pack.js";
import { RegexRunner } from "./regexrunner.js";
import { StepHead } from "./head.js";

const KEPT = 48;
const CHUNK_TOKENS = 262144;

// The last answers by key, as promises; a failed one is asked for again.
class Recent {
  constructor() {
    this.held = new Map();
  }

  get(key, make) {
    const found = this.held.get(key);
    if (found) {
      this.held.delete(key);
      this.held.set(key, found);
      return found;
    }
    const made = make();
    this.held.set(key, made);
    made.catch(() => this.held.delete(key));
    if (this.held.size > KEPT) this.held.delete(this.held.keys().next().value);
    return made;
  }
}

class ServerSource {
  constructor() {
    this.recent = new Recent();
    this.heads = new Map();
  }

  async ask(path, options = {}) {
    let answer;
    try {
      answer = await fetch(`api/${path}`, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The viewer's server does not answer. Is `archer view` still running?", 0);
    }
    if (answer.ok) return answer;
    let sentence = `The server answered ${answer.status}.`;
    try {
      sentence = (await answer.json()).error ?? sentence;
    } catch {
      if (answer.status === 401) sentence = "The viewer's token is missing or wrong: open the address it printed.";
    }
    throw new ApiError(sentence, answer.status);
  }

  async searchWorker() {
    return "static/searchworker.js";
  }

  // Where the server makes the page that `archer export` writes.
  exportAddress(head, group) {
    return `api/runs/${head.run}/steps/${head.step}/groups/${group}/page`;
  }

  async library() {
    return (await this.ask("runs")).json();
  }

  async timeline(run) {
    return (await this.ask(`runs/${run}/timeline`)).json();
  }

  async metrics(run) {
    return (await this.ask(`runs/${run}/metrics`)).json();
  }

  async series(run, names, points) {
    const query = new URLSearchParams({ points });
    for (const name of names) query.append("name", name);
    return (await (await this.ask(`runs/${run}/metrics/series?${query}`)).json()).series;
  }

  async telling(run) {
    return (await (await this.ask(`runs/${run}/telling`)).json()).telling;
  }

  async notes(run) {
    return (await this.ask(`runs/${run}/notes`)).json();
  }

  async addNote(run, note) {
    return (await this.ask(`runs/${run}/notes`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(note) })).json();
  }

  async deleteNote(run, id) {
    await this.ask(`runs/${run}/notes/${encodeURIComponent(id)}`, { method: "DELETE" });
  }

  async head(run, step) {
    const key = `${run}/${step}`;
    if (!this.heads.has(key)) {
      const made = this.ask(`runs/${run}/steps/${step}`).then(async (answer) => new StepHead(run, await answer.json()));
      this.heads.set(key, made);
      made.catch(() => this.heads.delete(key));
      if (this.heads.size > KEPT) this.heads.delete(this.heads.keys().next().value);
    }
    return this.heads.get(key);
  }

  forgetHeads() {
    this.heads.clear();
  }

  async packed(head, path, metrics, text) {
    const query = new URLSearchParams(metrics ? { metrics: metrics.join(",") } : {});
    if (text) query.set("text", "1");
    const address = `runs/${head.run}/steps/${head.step}/${head.version}/${path}?${query}`;
    return this.recent.get(address, async () => {
      try {
        return responsesOf(await (await this.ask(address)).arrayBuffer());
      } catch (error) {
        if (error.status === 409) this.heads.delete(`${head.run}/${head.step}`);
        throw error;
      }
    });
  }

  // Two metrics of all tokens of a step: {header: {total, shown, without}, arrays: {x, y, row, position}}
  async points(head, x, y) {
    const address = `runs/${head.run}/steps/${head.step}/${head.version}/points?${new URLSearchParams({ x, y })}`;
    return unpack(await (await this.ask(address)).arrayBuffer());
  }

  // Tokens of a step in order, within a window of two metrics where there is one.
  async tokens(head, { metric, order, limit, x = "", y = "", window = null }) {
    const query = new URLSearchParams({ metric, order, limit });
    if (window) {
      query.set("x", x);
      query.set("y", y);
      for (const [name, end] of [["low", 0], ["high", 1]]) for (const axis of ["x", "y"]) query.append(name, window[axis][end] === Infinity ? "inf" : window[axis][end] === -Infinity ? "-inf" : window[axis][end]);
    }
    return (await this.ask(`runs/${head.run}/steps/${head.step}/${head.version}/tokens?${query}`)).json();
  }

  async promptCourse(run, prompt) {
    return (await this.ask(`runs/${run}/prompt?${new URLSearchParams({ id: prompt })}`)).json();
  }

  async searchRun({ run, q, mode, case: sensitive, after }, signal) {
    const query = new URLSearchParams({ q, mode, case: sensitive ? "true" : "false", after });
    return (await this.ask(`runs/${run}/search?${query}`, { signal })).json();
  }

  group(head, group, metrics, text) {
    return this.packed(head, `groups/${group}`, metrics, text);
  }

  // Which response to lay beside `row`; without a row, the two to begin with.
  pair(head, group, row) {
    const address = `runs/${head.run}/steps/${head.step}/groups/${group}/pair${row === null ? "" : `?row=${row}`}`;
    return this.recent.get(`${head.version}/${address}`, async () => (await this.ask(address)).json());
  }

  async renderWorker() {
    return "static/renderworker.js";
  }

  async response(head, row) {
    return (await this.packed(head, `rows/${row}/1`, null, true))[0];
  }

  // All responses of a step with text and metrics, in pieces of a bearable size.
  async step(head, onprogress) {
    const all = [];
    let first = 0;
    while (first < head.size) {
      let rows = 0;
      for (let tokens = 0; first + rows < head.size && rows < 1024 && (rows === 0 || tokens < CHUNK_TOKENS); rows += 1) {
        tokens += head.rows.span[first + rows];
      }
      all.push(...(await this.packed(head, `rows/${first}/${rows}`, null, true)));
      first += rows;
      onprogress(first / head.size);
    }
    return all;
  }
}

export function openSource() {
  const source = document.getElementById("data-head") ? new EmbeddedSource() : new ServerSource();
  source.regexes = new RegexRunner(() => source.searchWorker());
  return source;
}
