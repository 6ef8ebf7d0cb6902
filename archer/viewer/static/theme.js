// Light and dark: the system's choice until the user makes one.

import { button } from "./dom.js";
import { isDark } from "./colour.js";

function remembered() {
  try {
    return localStorage.getItem("archer-theme");
  } catch {
    return null; // a page from a disk or in a frame may have no storage
  }
}

export function startTheme(changed) {
  const chosen = remembered();
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
}

export function toggleTheme() {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("archer-theme", next);
  } catch {
    // not remembered, but changed
  }
}

export function themeButton(changed) {
  const node = button("", () => {
    toggleTheme();
    label();
    changed();
  }, { class: "quiet icon", id: "theme" });
  const label = () => {
    node.textContent = isDark() ? "☀" : "☾";
    node.title = isDark() ? "Light colours (t)" : "Dark colours (t)";
    node.setAttribute("aria-label", node.title);
  };
  label();
  return node;
}
