// The groups of a step as cards: what each was asked, how its verdicts fall, what is wrong with it.

import { button, choose, fill, h } from "./dom.js";
import { count, number } from "./format.js";
import { promptLine } from "./promptline.js";

export const GROUP_ORDERS = [
  ["group", "by position"],
  ["disagreement", "by disagreement"],
  ["influence_abs", "by mean |influence|"],
  ["reward_variance", "by reward variance"],
  ["entropy", "by entropy"],
  ["accepted", "by accepted share"],
  ["reward", "by mean reward"],
  ["length", "by mean length"],
];

// What deserves a mark: [name, meaning]
export function groupMarks({ responses, accepted, unjudged, truncated }) {
  const marks = [];
  if (accepted === 1) marks.push(["all accepted", "Every verdict is the same: no advantage, no influence, nothing is learnt here."]);
  if (accepted === 0) marks.push(["all rejected", "Every verdict is the same: no advantage, no influence, nothing is learnt here."]);
  if (truncated) marks.push([`${truncated} truncated`, `${truncated} of ${responses} responses hit the length limit`]);
  if (unjudged) marks.push([`${unjudged} unjudged`, `The reward gave no verdict on ${unjudged} of ${responses} responses`]);
  return marks;
}

export class GroupCards {
  // `events`: {open(group), ahead(group)}
  constructor(store, events) {
    Object.assign(this, { store, events });
    this.orderBox = h("div");
    this.mixed = button("mixed only", () => store.go({ mixed: store.state.mixed ? 0 : 1 }), { class: "toggle", id: "mixed", title: "Only groups with accepted and rejected responses" });
    this.amount = h("span", { class: "amount", role: "status" });
    this.cards = h("div", { class: "groups" });
    this.empty = h("p", { class: "empty" });
    this.head = h("div", { class: "sectionhead" }, h("h2", {}, "Groups"), this.orderBox, this.mixed, this.amount);
    this.node = h("div", {}, this.head, this.empty, this.cards);
  }

  show(head, state) {
    const key = [state.gorder, state.mixed].join("/");
    if (this.shown === head && this.key === key) return;
    Object.assign(this, { shown: head, key });
    const order = GROUP_ORDERS.some(([name]) => name === state.gorder) ? state.gorder : "group";
    choose(this.orderBox, "Order of the groups", GROUP_ORDERS, order, (gorder) => this.store.go({ gorder }), { id: "grouporder" });
    this.mixed.setAttribute("aria-pressed", state.mixed ? "true" : "false");
    this.mixed.hidden = !head.rows.accepted;
    const kept = head.groups.filter(({ figures }) => !state.mixed || figures.disagreement > 0);
    if (order !== "group") kept.sort((a, b) => (b.figures[order] ?? -Infinity) - (a.figures[order] ?? -Infinity) || a.group - b.group);
    this.amount.textContent = state.mixed ? `${count(kept.length)} of ${count(head.groups.length)}` : "";
    this.empty.textContent = kept.length || !head.groups.length ? "" : "Every group of this step is all accepted or all rejected.";
    fill(this.cards, kept.map((entry) => this.card(head, entry)));
  }

  card(head, entry) {
    const { group, figures } = entry;
    const dots = head.rowsOf(group).slice(0, 32).map((row) => h("i", { class: `pip ${head.verdict(row) ?? ""}${head.fact(row, "truncated") ? " cut" : ""}` }));
    const good = head.rowsOf(group).filter((row) => head.fact(row, "accepted")).length;
    const facts = [
      ...(figures.accepted === null ? [] : [`${good} of ${figures.responses} accepted`]),
      `reward ${number(figures.reward)}`,
      `length ${number(figures.length)}`,
      `entropy ${number(figures.entropy)}`,
      ...(figures.influence === null ? [] : [`influence ${number(figures.influence)}, |·| ${number(figures.influence_abs)}`]),
    ];
    return button(
      [
        h("span", { class: "cardtop" }, h("strong", {}, `Group ${group}`), h("span", { class: "pips", "aria-hidden": "true" }, dots)),
        entry.prompt !== null && h("span", { class: "promptline" }, promptLine(entry, 160)),
        h("span", { class: "cardfacts" }, facts.join(" · ")),
        h("span", { class: "groupmarks" }, groupMarks(figures).map(([name, meaning]) => h("span", { class: "groupmark", title: meaning }, name))),
      ],
      () => this.events.open(group),
      { class: "groupcard", "data-group": group, onpointerenter: () => this.events.ahead(group), onfocus: () => this.events.ahead(group) },
    );
  }
}
