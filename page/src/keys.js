// Keyboard shortcuts.

import { emit } from "./bus.js";
import { $, make } from "./dom.js";
import { stop } from "./answer.js";
import { showNew, shown } from "./threads.js";

const KEYS = [
  ["Enter", "Send"],
  ["Shift+Enter", "Start a line"],
  ["Esc", "Stop the answer"],
  ["↑", "Edit your last message, if the field is empty"],
  ["Ctrl+K", "Search the conversations"],
  ["Ctrl+Shift+O", "New chat"],
  ["Ctrl+,", "Parameters"],
  ["Ctrl+/", "These shortcuts"],
];

function showShortcuts() {
  if (!$("shortcuts").open) $("shortcuts").showModal();
}

function pressed(event) {
  const isModal = document.querySelector("dialog:modal, [popover]:popover-open");
  if (event.key === "Escape") {
    if (!isModal && shown.thread.run) stop(shown.thread);
    return;
  }
  if (!(event.ctrlKey || event.metaKey) || event.altKey || event.isComposing) return;
  const key = event.key.toLowerCase();
  const action = key === "k" && !event.shiftKey ? () => emit("search")
    : key === "o" && event.shiftKey ? () => { showNew(); $("prompt").focus(); }
    : key === "," ? () => $("open").click()
    : key === "/" ? showShortcuts : null;
  if (!action || (isModal && isModal.id !== "sidebar")) return;
  event.preventDefault();
  action();
}

export function startKeys() {
  for (const [keys, what] of KEYS) {
    const parts = keys.split("+").flatMap((key, i) => [i ? "+" : "", make("kbd", {}, key)]);
    $("keys").append(make("div", {}, make("dt", {}, ...parts), make("dd", {}, what)));
  }
  $("help").addEventListener("click", showShortcuts);
  for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
  document.addEventListener("keydown", pressed);
}
