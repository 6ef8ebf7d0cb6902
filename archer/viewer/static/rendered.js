// A response as its author meant it to be read, on request: Markdown and LaTeX, drawn from known elements only.

import { fill, h } from "./dom.js";
import { visible } from "./format.js";

const LIMIT = 4000; // ms for one response
const MOST = 200000; // characters
const MOST_NODES = 60000;
const HTML = new Set("p br hr em strong s code pre blockquote ul ol li h1 h2 h3 h4 h5 h6 table thead tbody tr th td".split(" "));
const MATHML = new Set("math semantics mrow mi mo mn ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mtable mtr mtd mpadded mphantom menclose mstyle".split(" "));
const ATTRIBUTES = new Set("display mathvariant stretchy fence separator accent accentunder linethickness rowspacing columnalign columnspacing minsize maxsize width height depth voffset lspace rspace scriptlevel displaystyle notation start".split(" "));

// Copies what is known; of everything else only the text inside is kept, of annotations nothing.
function copied(node, budget) {
  if (node.nodeType === Node.TEXT_NODE) return visible(node.data).replaceAll("␊", "\n").replaceAll("␉", "\t");
  if (node.nodeType !== Node.ELEMENT_NODE || node.localName === "annotation" || (budget.left -= 1) < 0) return null;
  const children = Array.from(node.childNodes, (child) => copied(child, budget)).flat().filter((child) => child !== null);
  const math = node.namespaceURI.endsWith("/MathML");
  if (!(math ? MATHML : HTML).has(node.localName)) return children;
  const made = math ? document.createElementNS(node.namespaceURI, node.localName) : document.createElement(node.localName);
  for (const { name, value } of node.attributes) if (ATTRIBUTES.has(name) && value.length < 40) made.setAttribute(name, value);
  made.append(...children);
  return [made];
}

export class Rendered {
  // `address()` resolves to the address of the worker's script, or null where there is none
  constructor(address) {
    this.address = address;
    this.node = h("article", { class: "rendered", dir: "auto", "aria-label": "The response, rendered", tabindex: "0" });
    this.ticket = 0;
  }

  async show(response) {
    if (this.response === response) return;
    this.response = response;
    const ticket = (this.ticket += 1);
    this.worker?.terminate();
    this.worker = null;
    this.node.removeAttribute("data-done");
    if (!response) return;
    fill(this.node, h("p", { class: "hint" }, "Rendering …"));
    const { html, error } = await this.ask(response.text.slice(0, MOST));
    if (ticket !== this.ticket) return;
    if (error) {
      fill(this.node, h("p", { class: "hint" }, error));
    } else {
      const parsed = new DOMParser().parseFromString(html, "text/html"); // an inert document: nothing loads, nothing runs
      const budget = { left: MOST_NODES };
      fill(this.node, Array.from(parsed.body.childNodes, (child) => copied(child, budget)));
      if (response.text.length > MOST) this.node.append(h("p", { class: "hint" }, "The rest is too long to be rendered."));
    }
    this.node.dataset.done = response.row;
  }

  async ask(text) {
    const address = await this.address();
    if (!address) return { error: "A saved page does not carry the libraries that render; open the trace with `archer view`." };
    return new Promise((resolve) => {
      const worker = (this.worker = new Worker(address));
      const end = (answer) => {
        clearTimeout(timer);
        worker.terminate();
        resolve(answer);
      };
      const timer = setTimeout(() => end({ error: `This response takes longer than ${LIMIT / 1000} s to render; read its tokens.` }), LIMIT);
      worker.onerror = (event) => {
        event.preventDefault();
        end({ error: "This response cannot be rendered; read its tokens." });
      };
      worker.onmessage = ({ data }) => (data.ready ? worker.postMessage(text) : end(data));
    });
  }
}
