// Two responses of a group side by side, coloured by one metric and underlined by another; where they part is marked.

import { button, fill, h } from "./dom.js";
import { count, plural, spoken, visibleBlanks } from "./format.js";
import { difference } from "./difference.js";
import { Heatmap } from "./heatmap.js";
import { isDark } from "./colour.js";
import { matchTokens } from "./search.js";
import { passing } from "./tokens.js";
import { Rendered } from "./rendered.js";
import { responseTitle } from "./responsefacts.js";
import { shades } from "./grain.js";
import { tokenFacts, tokenName } from "./tooltip.js";
import { tokenText } from "./pack.js";

const alignments = new WeakMap();

function alignment(a, b) {
  let known = alignments.get(a);
  if (!known) alignments.set(a, (known = new WeakMap()));
  if (!known.has(b)) known.set(b, difference(a.ids, b.ids));
  return known.get(b);
}

export class PairView {
  constructor(store, source, tooltip) {
    Object.assign(this, { store, tooltip });
    this.summary = h("p", { class: "pairsummary" });
    this.inspector = h("aside", { class: "inspector", "aria-label": "The chosen token" });
    this.sides = [0, 1].map((side) => {
      const title = h("h2", { class: "responsetitle" });
      const heatmap = new Heatmap(1, {
        hover: (token, event) => this.hover(side, token, event),
        select: (token) => this.pick(side, token),
      });
      heatmap.panes[0].node.dataset.pane = side;
      const rendered = new Rendered(() => source.renderWorker());
      return { title, heatmap, rendered, node: h("div", { class: "pairside", "data-side": side }, title, heatmap.node) };
    });
    this.next = button("Next difference", () => this.step(1), { class: "quiet", id: "next-difference" });
    this.previous = button("Previous difference", () => this.step(-1), { class: "quiet", id: "previous-difference" });
    this.node = h(
      "section",
      { class: "pair response", "aria-label": "Two responses side by side" },
      h("div", { class: "pairhead" }, this.summary, h("span", { class: "pairsteps" }, this.previous, this.next)),
      h("div", { class: "grid texts" }, this.inspector, this.sides.map(({ node }) => node)),
    );
  }

  // What takes its time, done before somebody waits for it.
  prepare(responses) {
    if (responses.length > 1) alignment(...responses);
    responses.forEach((response, side) => this.sides[side].heatmap.prepare(response));
  }

  // `view`: {context, responses: [first, second], metrics, scales, under, filter, active, token}; the second metric
  // colours the text, metric number `under` is the line below it; the token is one of the first response
  show(view) {
    const { context, responses, metrics, scales, under, filter, active, token } = view;
    const { state, head } = context;
    const moved = this.view?.responses.some((response, side) => response !== responses[side]) ?? true;
    this.view = view;
    this.aligned = alignment(...responses);
    if (moved) responses.forEach((response, side) => fill(this.sides[side].title, responseTitle(head, response.row, true)));
    this.showSummary();
    const { differs, parts } = this.aligned;
    const found = responses.map((response) => (filter.search && !filter.search.error ? matchTokens(response, filter.search) : null));
    responses.forEach((response, side) => {
      const { rendered, node } = this.sides[side];
      if (state.rendered) node.append(rendered.node);
      else rendered.node.remove();
      rendered.show(state.rendered ? response : null);
      this.sides[side].heatmap.show({
        response,
        dark: isDark(),
        panes: [
          {
            values: shades(response, metrics[1], state.grain),
            failed: response.failed[metrics[1]],
            scale: scales[1],
            under: metrics[under] === metrics[1] ? null : { values: shades(response, metrics[under], state.grain), scale: scales[under] },
            keep: active ? passing(response, filter) : null,
            hits: found[side]?.flags ?? null,
            differs: differs[side],
            parts: parts < response.span ? parts : null,
          },
        ],
      });
    });
    const reveal = moved || token !== this.token;
    this.token = token;
    this.select(token, reveal);
    this.showInspector();
    const starts = found[0]?.starts ?? []; // keys go through the matches of the first response
    const place = token === null ? -1 : starts.indexOf(token);
    return { matches: starts.length, place: place < 0 ? null : place };
  }

  // The chosen token on the first side and its counterpart on the other; without one, the place where they part.
  select(token, reveal) {
    const { responses } = this.view;
    const [first, second] = this.sides.map(({ heatmap }) => heatmap);
    const at = token ?? Math.min(this.aligned.parts, responses[0].span - 1);
    const other = Math.min(this.counterpart(at), responses[1].span - 1);
    first.select(token ?? null, false);
    second.select(token === null || this.aligned.partner[0][token] < 0 ? null : other, false);
    if (reveal) {
      first.reveal(at);
      second.reveal(other);
    }
  }

  // Where a token of the first response stands in the second, or would.
  counterpart(token) {
    const [partner] = this.aligned.partner;
    for (let at = token; at >= 0; at -= 1) if (partner[at] >= 0) return partner[at] + (at < token ? 1 : 0);
    return 0;
  }

  showSummary() {
    const { responses, metrics, under } = this.view;
    const { differs, parts } = this.aligned;
    const below = metrics[under] === metrics[1] ? "" : ` Line below: ${spoken(metrics[under])}.`;
    const [left, right] = responses.map((response) => (parts < response.span ? `“${visibleBlanks(tokenText(response, parts))}”` : "the end"));
    const amount = differs[0].reduce((sum, flag) => sum + flag, 0) + differs[1].reduce((sum, flag) => sum + flag, 0);
    this.summary.textContent = amount
      ? `They part at token ${count(parts)}: ${left} here, ${right} there. Line above: the ${plural(amount, "token")} that only one of them has.${below}`
      : `The two responses are the same.${below}`;
    this.previous.disabled = this.next.disabled = !amount;
  }

  showInspector() {
    const { context, responses } = this.view;
    if (this.token === null) {
      fill(this.inspector, h("p", { class: "hint" }, "Point at a token to read its values, click to keep them here. Arrow keys go from token to token."));
      return;
    }
    fill(
      this.inspector,
      h("div", { class: "chosen" }, tokenName(responses[0], this.token)),
      h("dl", {}, tokenFacts(context.head, responses[0], this.token, this.tooltip.unit).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    );
  }

  hover(side, token, event) {
    if (token < 0 || !event) this.tooltip.hide();
    else this.tooltip.show(this.view.context.head, this.view.responses[side], token, event);
  }

  // A click on either side makes that response the chosen one, the other stays beside it. On the right the page does
  // not turn round: the counterpart on the left is chosen where there is one.
  pick(side, token) {
    const [first, second] = this.view.responses;
    const left = side === 0 ? token : this.aligned.partner[1][token];
    if (left >= 0) this.store.go({ response: first.row, token: left, beside: String(second.row) });
    else this.store.go({ response: second.row, token, beside: String(first.row) });
  }

  // To the next run of tokens that only the first response has.
  step(direction) {
    const [flags] = this.aligned.differs;
    const { length } = flags;
    const starts = [];
    for (let token = 0; token < length; token += 1) if (flags[token] && !flags[token - 1]) starts.push(token);
    const from = this.token ?? -1;
    const next = direction > 0 ? (starts.find((start) => start > from) ?? starts[0]) : (starts.findLast((start) => start < from) ?? starts[starts.length - 1]);
    if (next !== undefined) this.store.go({ response: this.view.responses[0].row, token: next, beside: String(this.view.responses[1].row) });
  }

  move(key) {
    const [response, other] = this.view.responses;
    if (!response.span) return;
    const { layout } = this.sides[0].heatmap;
    const from = this.store.state.token ?? this.token ?? -1;
    let to = Math.max(from, 0);
    if (key === "ArrowRight") to = Math.min(from + 1, response.span - 1);
    if (key === "ArrowLeft") to = Math.max(from - 1, 0);
    if (key === "ArrowDown" && from >= 0) to = layout.vertical(from, 1);
    if (key === "ArrowUp" && from >= 0) to = layout.vertical(from, -1);
    if (key === "Home") to = 0;
    if (key === "End") to = response.span - 1;
    this.store.go({ response: response.row, token: to, beside: String(other.row) });
    this.tooltip.say(this.view.context.head, response, to);
  }
}
