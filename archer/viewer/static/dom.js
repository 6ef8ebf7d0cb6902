// Elements without markup: text from a trace only ever becomes a text node or an attribute value.

export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function fill(node, ...children) {
  node.replaceChildren(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function select(label, options, value, onchange, extra = {}) {
  const node = h(
    "select",
    { "aria-label": label, title: label, ...extra },
    options.map(([key, text]) => h("option", { value: key }, text)),
  );
  node.value = String(value);
  node.pick = onchange;
  node.addEventListener("change", () => node.pick(node.value));
  return node;
}

// Keeps one select in a slot: while its options stay the same the element stays, and with it the focus.
export function choose(slot, label, options, value, onchange, extra = {}) {
  const key = JSON.stringify([label, options]);
  if (slot.firstChild && slot.optionsKey === key) {
    slot.firstChild.value = String(value);
    slot.firstChild.pick = onchange;
  } else {
    slot.optionsKey = key;
    fill(slot, select(label, options, value, onchange, extra));
  }
}

export function button(label, onclick, props = {}) {
  return h("button", { type: "button", onclick, ...props }, label);
}

// A row of buttons of which one is pressed.
export function segmented(label, options, value, onchange) {
  return h(
    "div",
    { class: "segmented", role: "group", "aria-label": label },
    options.map(([key, text]) =>
      button(text, () => onchange(key), { "aria-pressed": key === value ? "true" : "false", "data-key": key }),
    ),
  );
}

// The same in a slot that keeps its buttons, and with them the focus, while the options stay the same.
export function chooseSegment(slot, label, options, value, onchange) {
  const key = JSON.stringify([label, options]);
  if (slot.optionsKey !== key) {
    slot.optionsKey = key;
    fill(slot, segmented(label, options, value, (chosen) => slot.pick(chosen)));
  }
  slot.pick = onchange;
  for (const node of slot.querySelectorAll("button")) node.setAttribute("aria-pressed", node.dataset.key === value ? "true" : "false");
}

// A canvas whose drawing units are CSS pixels.
export function sizeCanvas(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const w = Math.max(1, Math.round(width * ratio));
  const t = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== t) {
    canvas.width = w;
    canvas.height = t;
  }
  const [wide, tall] = [`${width}px`, `${height}px`];
  if (canvas.style.width !== wide) canvas.style.width = wide;
  if (canvas.style.height !== tall) canvas.style.height = tall;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

export function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function debounce(wait, action) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...args), wait);
  };
}

export function download(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// What stands between backticks is something to type.
export function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
}
