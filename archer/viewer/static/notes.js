// Notes kept beside the run: a list on the run page, a dialog anywhere, small marks where there is one.

import { button, fill, h } from "./dom.js";
import { moment, plural, visible } from "./format.js";

const PLACE = ["step", "group", "response", "token"];

// "step 40 · group 13", or "the run"
export function placeName(place) {
  const parts = PLACE.filter((name) => place[name] !== null && place[name] !== undefined).map((name) => `${name} ${place[name]}`);
  return parts.join(" · ") || "the run";
}

export class Notes {
  constructor(store, source) {
    Object.assign(this, { store, source });
    this.held = { notes: [], off: null };
    this.text = h("textarea", { id: "note-text", rows: 4, maxlength: 4000, "aria-label": "New note" });
    this.place = h("h2");
    this.said = h("p", { class: "hint", role: "status" });
    this.here = h("ul", { class: "notes" });
    this.add = button("Keep note", () => this.keep(), { id: "keep-note" });
    this.dialog = h("dialog", { class: "help notedialog", "aria-label": "Notes" }, this.place, this.here, this.text, this.said, h("div", { class: "controls" }, this.add, button("Close", () => this.dialog.close())));
    document.body.append(this.dialog);
    this.list = h("ul", { class: "notes" });
    this.node = h("section", { class: "notelist", hidden: true, "aria-label": "Notes" }, h("div", { class: "sectionhead" }, h("h2", {}, "Notes")), this.list);
  }

  async load(run) {
    if (this.run !== run) this.held = { notes: [], off: null };
    this.run = run;
    const held = await this.source.notes(run).catch((error) => ({ notes: [], off: error.message }));
    if (this.run === run) this.held = held;
  }

  open() {
    this.showHere();
    this.text.value = "";
    if (!this.dialog.open) this.dialog.showModal();
  }

  showHere() {
    const { state } = this.store;
    this.place.textContent = `Notes about ${placeName(state)}`;
    const here = this.held.notes.filter((note) => PLACE.every((name) => (note[name] ?? null) === state[name]));
    fill(this.here, here.map((note) => this.line(note)));
    this.text.hidden = this.add.hidden = Boolean(this.held.off);
    this.said.textContent = this.held.off ?? "Kept in notes.jsonl beside the run.";
  }

  async keep() {
    const place = Object.fromEntries(PLACE.map((name) => [name, this.store.state[name]]));
    await this.change(() => this.source.addNote(this.run, { text: this.text.value, ...place }));
    if (!this.failed) this.dialog.close();
  }

  // Does something to the notes, then shows them as they are now.
  async change(action) {
    this.failed = null;
    try {
      await action();
      await this.load(this.run);
    } catch (error) {
      this.failed = error.message;
    }
    this.showHere();
    if (this.failed) this.said.textContent = this.failed;
    this.show();
    this.changed?.();
  }

  line(note) {
    const place = Object.fromEntries(PLACE.map((name) => [name, note[name] ?? null]));
    return h(
      "li",
      {},
      button(placeName(place), () => {
        this.dialog.close();
        this.store.go({ ...place, vs: "" });
      }, { class: "rowlink" }),
      h("span", { class: "notetext", dir: "auto" }, note.text.split("\n").map(visible).join("\n")),
      h("span", { class: "lead" }, moment(note.time)),
      !this.held.off && button("Delete", () => this.change(() => this.source.deleteNote(this.run, note.id)), { class: "quiet", "aria-label": `Delete the note about ${placeName(place)}` }),
    );
  }

  show() {
    this.node.hidden = !this.held.notes.length;
    fill(this.list, [...this.held.notes].reverse().map((note) => this.line(note)));
  }

  // Marks whatever on the page stands for a noted group or response; `label` is the button that opens the dialog.
  mark(root, state, label) {
    const here = this.held.notes.filter((note) => (note.step ?? null) === state.step || state.step === null);
    const inside = here.filter((note) => state.group === null || note.group === state.group);
    label.textContent = inside.length ? plural(inside.length, "note") : "Note";
    const groups = new Set(here.map((note) => note.group));
    const rows = new Set(inside.map((note) => note.response));
    for (const node of root.querySelectorAll("[data-group]")) node.toggleAttribute("data-noted", groups.has(Number(node.dataset.group)));
    for (const node of root.querySelectorAll(".striplabel[data-row]")) node.toggleAttribute("data-noted", rows.has(Number(node.dataset.row)));
  }
}
