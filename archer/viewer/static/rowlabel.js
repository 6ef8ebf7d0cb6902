// One response of a group in a line: verdict, number, what it answered, how long it is.

import { count, number, visible } from "./format.js";
import { h } from "./dom.js";
import { verdictMark } from "./stepview.js";

const ANSWER = 40; // characters

// {content, name, title}: elements, the name for screen readers, the text of the pointer's tooltip
export function rowLabel(head, row) {
  const verdict = head.verdict(row);
  const answer = head.fact(row, "extracted_answer");
  const reward = head.fact(row, "reward");
  const truncated = head.fact(row, "truncated");
  const shown = answer === null ? (reward === null ? "" : `r ${number(reward, 2)}`) : answer === "" ? "no answer" : visible(answer.slice(0, ANSWER));
  const facts = [
    `Response ${row}, ${verdict ?? "no verdict"}`,
    answer !== null && (answer === "" ? "no answer found" : `answer ${visible(answer.slice(0, ANSWER))}`),
    `reward ${number(reward)}`,
    `${head.fact(row, "length")} tokens`,
    truncated && "cut off at the length limit",
  ].filter(Boolean);
  const reason = head.fact(row, "reason");
  return {
    content: [
      verdictMark(verdict),
      h("b", {}, String(row)),
      h("span", { class: answer === "" ? "answer none" : answer === null ? "" : "answer", dir: "auto" }, shown),
      h("span", { class: "len" }, truncated ? h("abbr", { title: "cut off at the length limit" }, "✂ ") : null, count(head.fact(row, "length"))),
    ],
    name: facts.join(", "),
    title: [facts.join(", "), reason && visible(reason)].filter(Boolean).join("\n"),
  };
}
