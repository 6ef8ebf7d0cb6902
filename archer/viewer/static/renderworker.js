// Markdown and LaTeX to HTML text, in a thread that can be ended. The page never takes this text as markup: it copies
// known elements from it, one by one (rendered.js). HTML in the Markdown stays text, links and images are off.

importScripts("vendor/markdown-it.min.js", "vendor/katex.min.js");

const MATH = { output: "mathml", trust: false, strict: "ignore", maxExpand: 200, maxSize: 20, throwOnError: true };
const LONGEST = 4000; // characters of one formula
const PAIRS = [["\\[", "\\]", true], ["\\(", "\\)", false], ["$$", "$$", true], ["$", "$", false]];

const markdown = self.markdownit({ html: false, linkify: false, typographer: false, maxNesting: 40 }).disable(["link", "image", "autolink", "reference"]);
const { escapeHtml } = markdown.utils;

function formula(source, display) {
  if (source.length > LONGEST) return `<code>${escapeHtml(source)}</code>`;
  try {
    return self.katex.renderToString(source, { ...MATH, displayMode: display });
  } catch {
    return `<code>${escapeHtml(source)}</code>`; // what is no LaTeX stays as it was written
  }
}

// A dollar before a blank, or whose closing one follows a blank or precedes a digit, is money.
function closes(text, close, from, dollar) {
  const at = text.indexOf(close, from);
  if (at < 0 || !dollar) return at;
  const money = /\s/.test(text[from]) || /\s/.test(text[at - 1]) || /\d/.test(text[at + 1] ?? "") || text.slice(from, at).includes("\n\n");
  return money ? -1 : at;
}

markdown.inline.ruler.before("escape", "math", (state, silent) => {
  const pair = PAIRS.find(([open]) => state.src.startsWith(open, state.pos));
  if (!pair) return false;
  const [open, close, display] = pair;
  const from = state.pos + open.length;
  const at = closes(state.src, close, from, open === "$");
  if (at <= from) return false;
  if (!silent) Object.assign(state.push(display ? "math_display" : "math_inline", "", 0), { content: state.src.slice(from, at) });
  state.pos = at + close.length;
  return true;
});

// A formula that begins a line goes on to its end, whatever its lines look like.
markdown.block.ruler.before("fence", "math", (state, first, end, silent) => {
  const start = state.bMarks[first] + state.tShift[first];
  const pair = PAIRS.find(([open, , display]) => display && state.src.startsWith(open, start));
  if (!pair) return false;
  const [open, close] = pair;
  const at = state.src.indexOf(close, start + open.length);
  if (at < 0 || at > state.eMarks[end - 1]) return false;
  let line = first;
  while (state.eMarks[line] < at) line += 1;
  if (state.src.slice(at + close.length, state.eMarks[line]).trim()) return false; // text after it: the inline rule
  if (silent) return true;
  Object.assign(state.push("math_display", "", 0), { content: state.src.slice(start + open.length, at), block: true });
  state.line = line + 1;
  return true;
}, { alt: ["paragraph", "blockquote", "list"] });

markdown.renderer.rules.math_display = (tokens, at) => formula(tokens[at].content, true);
markdown.renderer.rules.math_inline = (tokens, at) => formula(tokens[at].content, false);

self.onmessage = ({ data }) => self.postMessage({ html: markdown.render(data) });
self.postMessage({ ready: true });
