// All that is known of one token: beside the pointer, at the chosen token, and for screen readers.

import { fill, h } from "./dom.js";
import { number, spoken, visibleBlanks } from "./format.js";
import { shades } from "./grain.js";
import { tokenText } from "./pack.js";

// `unit`: {grain, metrics} where colours show the means of larger units, else null
export function tokenFacts(head, response, token, unit) {
  const facts = [["position", String(token)]];
  if (response.ids) facts.push(["id", String(response.ids[token])]);
  for (const metric of head.metrics) {
    const values = response.values[metric.name];
    if (!values) continue;
    const value = values[token];
    const text = !response.mask[token] ? "masked" : value !== value ? (failureOf(response, metric.name, token) ?? "no value") : number(value, 4);
    facts.push([spoken(metric.name), text]);
  }
  if (unit && response.mask[token] && response.text !== undefined) {
    for (const metric of new Set(unit.metrics)) facts.push([`${unit.grain} mean ${spoken(metric)}`, number(shades(response, metric, unit.grain)[token], 4)]);
  }
  return facts;
}

const FAILURES = [null, "NaN: failed", "+inf: failed", "−inf: failed"]; // as archer/viewer/metrics.py counts them

// What stands where a number should, null where nothing failed.
export function failureOf(response, metric, token) {
  return FAILURES[response.failed[metric]?.[token] ?? 0];
}

export function tokenName(response, token) {
  if (response.text === undefined) return "";
  const text = tokenText(response, token);
  return text === "" ? "(continues a character)" : visibleBlanks(text);
}

export class Tooltip {
  constructor() {
    this.unit = null;
    this.node = h("div", { class: "tooltip", role: "tooltip", hidden: true });
    this.live = h("div", { class: "unseen", "aria-live": "polite" });
    document.body.append(this.node, this.live);
  }

  show(head, response, token, point) {
    if (!response || token === null || token < 0 || token >= response.span || !point) return this.hide();
    const facts = tokenFacts(head, response, token, this.unit);
    fill(
      this.node,
      response.text !== undefined && h("div", { class: "tooltip-token" }, tokenName(response, token)),
      h("dl", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    );
    this.node.hidden = false;
    const box = this.node.getBoundingClientRect();
    const left = Math.min(point.clientX + 14, window.innerWidth - box.width - 8);
    const below = point.clientY + 18;
    const top = below + box.height > window.innerHeight - 8 ? point.clientY - box.height - 26 : below;
    this.node.style.left = `${Math.max(8, left)}px`;
    this.node.style.top = `${Math.max(8, top)}px`;
    return undefined;
  }

  say(head, response, token) {
    const facts = tokenFacts(head, response, token, this.unit).map(([name, value]) => `${name} ${value}`);
    this.live.textContent = `${tokenName(response, token)}: ${facts.join(", ")}`;
  }

  hide() {
    this.node.hidden = true;
  }
}
