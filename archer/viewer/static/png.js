// What is shown, as a PNG: canvases are copied, text and plain boxes are drawn again where the page has them.
// Nothing is fetched and no markup is rendered, so hostile text stays text.

import { button, cssColour, download } from "./dom.js";

const MARGIN = 16;
const MAX_SIDE = 16000;
const MAX_NODES = 20000;

// The picture of one element and everything visible inside it.
export function pictureOf(element) {
  const box = element.getBoundingClientRect();
  const width = Math.ceil(box.width) + 2 * MARGIN;
  const height = Math.ceil(box.height) + 2 * MARGIN;
  const ratio = Math.min(2, MAX_SIDE / Math.max(width, height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = cssColour("--paper");
  context.fillRect(0, 0, width, height);
  context.translate(MARGIN - box.left, MARGIN - box.top);
  draw(context, element, { left: MAX_NODES });
  return canvas;
}

function draw(context, element, budget) {
  if (budget.left <= 0) return;
  budget.left -= 1;
  const style = getComputedStyle(element);
  if (style.display === "none" || style.visibility === "hidden" || Number(style.opacity) === 0) return;
  if (element.parentElement?.matches("details:not([open])") && !element.matches("summary")) return; // folded away
  const box = element.getBoundingClientRect();
  if (style.clipPath !== "none" || element.matches('.nopicture, input[type="range"]')) return;
  boxOf(context, style, box);
  if (element instanceof HTMLCanvasElement) {
    if (box.width && box.height && element.width && element.height) context.drawImage(element, box.left, box.top, box.width, box.height);
    return;
  }
  if (element.matches("input, select, textarea")) {
    field(context, element, style, box);
    return;
  }
  const clips = style.overflowX !== "visible" || style.overflowY !== "visible";
  if (clips) {
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.width, box.height);
    context.clip();
  }
  for (const child of element.childNodes) {
    if (child instanceof HTMLElement) draw(context, child, budget);
    else if (child.nodeType === Node.TEXT_NODE && child.data.trim()) text(context, child, style, budget);
  }
  if (clips) context.restore();
}

function boxOf(context, style, box) {
  if (!transparent(style.backgroundColor)) {
    context.fillStyle = style.backgroundColor;
    context.beginPath();
    context.roundRect(box.left, box.top, box.width, box.height, Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.height / 2));
    context.fill();
  }
  for (const [side, x, y, dx, dy] of [["Top", 0, 0, 1, 0], ["Bottom", 0, 1, 1, 0], ["Left", 0, 0, 0, 1], ["Right", 1, 0, 0, 1]]) {
    const size = parseFloat(style[`border${side}Width`]);
    if (!size || style[`border${side}Style`] === "none" || transparent(style[`border${side}Color`])) continue;
    context.fillStyle = style[`border${side}Color`];
    context.fillRect(box.left + x * (box.width - size), box.top + y * (box.height - size), dx ? box.width : size, dy ? box.height : size);
  }
}

function transparent(colour) {
  return colour === "transparent" || /[,/]\s*0\)$/.test(colour);
}

function ink(context, style) {
  context.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  context.fillStyle = style.color;
  context.textBaseline = "middle";
  context.direction = style.direction;
}

function field(context, element, style, box) {
  if (element.type === "checkbox") return;
  ink(context, style);
  const shown = element instanceof HTMLSelectElement ? (element.selectedOptions[0]?.textContent ?? "") : element.value || element.placeholder || "";
  context.fillText(shown, box.left + parseFloat(style.paddingLeft) + 1, box.top + box.height / 2, Math.max(box.width - 4, 1));
}

// A text node line by line: what stands on one line is drawn in one piece.
function text(context, node, style, budget) {
  if (transparent(style.color)) return;
  ink(context, style);
  const range = document.createRange();
  range.selectNodeContents(node);
  const rects = range.getClientRects();
  const keep = style.whiteSpace.startsWith("pre") || style.whiteSpace === "break-spaces";
  const put = (piece, rect) => {
    const shown = keep ? piece.replace(/\n/g, "") : piece.replace(/\s+/g, " ");
    const cased = style.textTransform === "uppercase" ? shown.toUpperCase() : shown;
    context.fillText(rect.left === rects[0].left || keep ? cased : cased.trimStart(), rect.left, rect.top + rect.height / 2);
  };
  if (rects.length === 1) {
    put(keep ? node.data : node.data.trim(), rects[0]);
    return;
  }
  for (const match of node.data.matchAll(/\S+/g)) {
    if ((budget.left -= 1) <= 0) return;
    range.setStart(node, match.index);
    range.setEnd(node, match.index + match[0].length);
    const place = range.getClientRects()[0];
    if (place) put(match[0], place);
  }
}

export function savePng(element, name) {
  return new Promise((done, failed) => {
    pictureOf(element).toBlob((blob) => {
      if (!blob) {
        failed(new Error("The picture is too large for this browser; show less and try again."));
        return;
      }
      download(`${name.replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 120) || "archer"}.png`, blob, "image/png");
      done();
    }, "image/png");
  });
}

// `element()` is asked when the button is pressed.
export function pngButton(element, name, label = "PNG") {
  return button(label, () => savePng(element(), name()), { class: "quiet nopicture", title: "Save what is shown here as a PNG" });
}
