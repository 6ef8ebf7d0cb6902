// The head of the group page: which group, how it did, what was asked, what was right.

import { count, number, visible } from "./format.js";
import { button, fill, h } from "./dom.js";
import { promptLine } from "./promptline.js";

const TRUTH = 80; // characters

export class GroupTitle {
  constructor(store, source) {
    this.source = source;
    this.title = h("h1");
    this.prompt = h("details", { class: "prompt" });
    this.save = h("a", { class: "action", id: "save", download: "", title: "This group as one HTML file that opens without a server" }, "Save as a page");
    this.course = button("Through training", () => store.go({ page: "prompt", prompt: this.asked }), { class: "quiet", id: "course", title: "This prompt at all steps it appeared in" });
    this.notes = h("div");
    this.node = h("div", {}, h("div", { class: "worktitle" }, this.title, this.prompt, this.course, this.save), this.notes);
  }

  // `response`: one of the group, whose prompt is whole; none while it is on its way
  show({ state, head }, response) {
    const key = [head.run, head.step, head.version, state.group, response?.row].join("/");
    if (this.key === key) return;
    this.key = key;
    fill(this.notes, head.notes.map((note) => h("p", { class: "notice" }, note)));
    const rows = head.rowsOf(state.group);
    const good = rows.filter((row) => head.fact(row, "accepted")).length;
    const truth = head.fact(rows[0], "ground_truth");
    fill(
      this.title,
      `Group ${state.group} `,
      h("span", { class: "lead" }, `${count(rows.length)} responses · ${head.rows.accepted ? `${good} accepted · ` : ""}mean reward ${number(mean(rows.map((row) => head.fact(row, "reward"))))}`),
      truth && h("span", { class: "truth", dir: "auto" }, `ground truth ${visible(truth.slice(0, TRUTH))}`),
    );
    const address = this.source.exportAddress(head, state.group);
    this.save.hidden = address === null;
    if (address !== null) this.save.href = address;
    const entry = head.groups.find(({ group }) => group === state.group);
    this.asked = entry?.prompt_id ?? null;
    this.course.hidden = this.asked === null || address === null;
    const text = response?.prompt ?? entry?.prompt ?? null;
    fill(this.prompt, h("summary", {}, "Prompt ", text !== null && h("span", { class: "promptline" }, promptLine(entry ?? { prompt: text }, 96))), h("pre", { dir: "ltr" }, text === null ? "This trace holds no prompts." : promptText(text)));
  }
}

// Line breaks stay, everything else that cannot be seen becomes a sign.
function promptText(text) {
  return text.split("\n").map(visible).join("\n");
}

function mean(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
