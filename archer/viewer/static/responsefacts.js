// What is known of a response beside its tokens: verdict and what it rests on, and its means with their signs.

import { count, number, signedNumber, spoken, visible } from "./format.js";
import { h } from "./dom.js";
import { verdictMark } from "./stepview.js";

const HEADLINE = ["entropy", "influence", "log_prob", "advantage"]; // metrics whose means are told

function means(head, row) {
  return head.metrics
    .filter(({ name }) => HEADLINE.includes(name))
    .map(({ name, ramp }) => {
      const label = spoken(name);
      if (ramp !== "diverging") return `mean ${label} ${number(head.mean(row, name))}`;
      return `mean ${label} ${signedNumber(head.mean(row, name))} (|${label}| ${number(head.mean(row, name, true))})`;
    });
}

// Why the verdict is what it is: [[name, text], ...], only what the trace holds.
export function verdictFacts(head, row) {
  const answer = head.fact(row, "extracted_answer");
  const truth = head.fact(row, "ground_truth");
  const reason = head.fact(row, "reason");
  return [
    answer !== null && ["answer", answer === "" ? "none found" : answer],
    truth !== null && truth !== "" && ["ground truth", truth],
    reason !== null && reason !== "" && ["reason", reason],
    head.fact(row, "truncated") && ["cut off", "the response hit the length limit"],
    ...(head.fact(row, "said") ?? []),
  ].filter(Boolean);
}

// The heading of a response; `brief` tells what the verdict rests on and two means in one line below it.
export function responseTitle(head, row, brief = false) {
  const facts = [];
  if (head.verdict(row)) facts.push(head.verdict(row));
  if (head.fact(row, "reward") !== null) facts.push(`reward ${number(head.fact(row, "reward"))}`);
  facts.push(`${count(head.fact(row, "length"))} tokens`);
  if (!brief) {
    facts.push(...means(head, row));
    facts.push(`rollout row ${head.fact(row, "response_index")}`);
    if (head.fact(row, "data_source")) facts.push(visible(head.fact(row, "data_source")));
    if ((head.fact(row, "seed") ?? -1) >= 0) facts.push(`seed ${head.fact(row, "seed")}`);
  }
  const why = verdictFacts(head, row).map(([name, text]) => h("div", { class: "said" }, h("b", {}, visible(name)), " ", h("span", { dir: "auto" }, visible(text))));
  return [
    verdictMark(head.verdict(row)),
    ` Response ${row} `,
    h("span", { class: "lead" }, facts.join(" · ")),
    h("div", { class: "brief" }, why, brief && h("span", { class: "lead" }, means(head, row).slice(0, 2).join(" · "))),
  ];
}
