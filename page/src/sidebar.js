// The list of conversations: search, names, deletion, export and import.

import { emit, on } from "./bus.js";
import { $, icon, make, question, toast } from "./dom.js";
import * as store from "./store.js";
import { remove, rename, showNew, showStored, shown, unkept } from "./threads.js";
import { download, exported, imported } from "./transfer.js";

const DAY = 86_400_000;
/** Most conversations that are listed at once. */
const MAX_LISTED = 300;
let listed = MAX_LISTED;

function ageOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  const days = Math.ceil((midnight - time) / DAY);
  return days <= 0 ? "Today" : days === 1 ? "Yesterday" : days <= 7 ? "Last 7 days" : days <= 30 ? "Last 30 days" : "Older";
}

const menu = make("div", { id: "menu", popover: "auto" });
menu.setAttribute("role", "menu");

function openMenu(button, one) {
  const entry = (label, name, action) => {
    const item = make("button", { type: "button" }, icon(name), label);
    item.setAttribute("role", "menuitem");
    item.addEventListener("click", () => {
      menu.hidePopover();
      action();
    });
    return item;
  };
  const items = [
    entry("Rename", "pencil", () => askName(one)),
    entry("Export", "download", () => attempt(async () => download(fileName(one.title), await exported([one.id])))),
    entry("Delete", "trash", () => askRemoval(one)),
  ];
  menu.replaceChildren(...items);
  menu.ariaLabel = one.title;
  const box = button.getBoundingClientRect();
  // A modal dialog is above the rest of the page, so the menu is placed inside it.
  button.closest("dialog").append(menu);
  menu.showPopover();
  menu.style.top = Math.min(box.bottom + 4, innerHeight - menu.offsetHeight - 8) + "px";
  menu.style.left = Math.max(8, Math.min(box.left, innerWidth - menu.offsetWidth - 8)) + "px";
  items[0].focus();
  button.ariaExpanded = "true";
  const closed = (event) => {
    if (event.newState !== "closed") return;
    button.ariaExpanded = "false";
    menu.removeEventListener("toggle", closed);
    if (menu.contains(document.activeElement) || document.activeElement === document.body) button.focus();
  };
  menu.addEventListener("toggle", closed);
}

menu.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const items = [...menu.children];
  items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus();
});

const fileName = (title) => "penstock-" + (title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "chat") + ".json";

/** Runs an operation on the storage. If the browser refuses it, says so. */
async function attempt(action) {
  try {
    await action();
  } catch (error) {
    toast("It failed: " + error.message);
  }
}

async function askName(one) {
  const title = await question({ text: "Rename the conversation", value: one.title, yes: "Rename" });
  if (title) await attempt(() => rename(one.id, title));
}

async function askRemoval(one) {
  const text = `Delete “${one.title}” with all its messages? This cannot be undone.`;
  if (await question({ text, yes: "Delete" })) await attempt(() => remove(one.id));
}

function row(one, extract) {
  const isShown = shown.thread?.conversation.id === one.id;
  const open = make("button", { type: "button", className: "open", title: one.title }, make("span", {}, one.title));
  if (extract) open.append(make("small", {}, extract));
  if (isShown) open.setAttribute("aria-current", "page");
  open.addEventListener("click", async () => {
    if (!(await showStored(one.id))) toast("This conversation was deleted");
    closeIfNarrow();
    $("prompt").focus();
  });
  const about = { ariaLabel: "More about " + one.title, ariaHasPopup: "menu", ariaExpanded: "false" };
  const more = make("button", { type: "button", className: "icon", ...about }, icon("dots"));
  more.addEventListener("click", () => openMenu(more, one));
  return make("li", { className: isShown ? "current" : "" }, open, more);
}

let round = 0;
async function show() {
  const mine = (round += 1);
  const words = $("search").value.trim();
  const [stored, found] = await Promise.all([store.conversations(), words ? store.search(words) : null]);
  // A later call has overtaken this one.
  if (mine !== round) return;
  const all = [...unkept().filter((thread) => thread.isNew).map((thread) => thread.conversation), ...stored];
  const wanted = all.filter((one) => !found || found.has(one.id)).sort((a, b) => b.updated - a.updated);
  const groups = new Map();
  for (const one of wanted.slice(0, listed)) {
    const age = found ? `${wanted.length} found` : ageOf(one.updated);
    groups.set(age, [...(groups.get(age) ?? []), row(one, found?.get(one.id))]);
  }
  const nodes = [...groups].flatMap(([age, rows]) => [make("h2", {}, age), make("ul", {}, ...rows)]);
  if (!nodes.length) nodes.push(make("p", { className: "none" }, words ? "Nothing found" : "No conversations yet"));
  if (wanted.length > listed) nodes.push(moreButton(wanted.length - listed));
  const focused = document.activeElement?.closest("#list li") ? document.activeElement.title || document.activeElement.ariaLabel : null;
  $("list").replaceChildren(...nodes);
  if (focused) [...$("list").querySelectorAll("button")].find((button) => (button.title || button.ariaLabel) === focused)?.focus();
}

function moreButton(count) {
  const button = make("button", { type: "button", className: "quiet" }, `Show ${count} more`);
  button.addEventListener("click", () => {
    listed += MAX_LISTED;
    show();
  });
  return button;
}

const sidebar = $("sidebar");
export const narrow = matchMedia("(max-width: 55rem)");

function openSidebar() {
  if (sidebar.open) return;
  const focused = document.activeElement;
  if (narrow.matches) {
    sidebar.showModal();
  } else {
    sidebar.show();
    // A dialog takes the focus, even if it is not modal.
    document.activeElement.blur();
    focused?.focus();
  }
  $("show").hidden = !narrow.matches;
}

function closeIfNarrow() {
  if (narrow.matches && sidebar.open) sidebar.close();
}

function toSearch() {
  openSidebar();
  $("search").focus();
  $("search").select();
}

async function importFile() {
  const file = $("load").files[0];
  $("load").value = "";
  if (!file) return;
  try {
    const { count, first } = await imported(file);
    toast(count === 1 ? "1 conversation imported" : `${count} conversations imported`);
    if (first) await showStored(first);
    emit("list");
  } catch (error) {
    toast(`${file.name}: ${error.message}`);
  }
}

let pending = 0;
/** Shows the list soon. Several changes in quick succession are shown once. */
function soon() {
  pending ||= setTimeout(() => {
    pending = 0;
    show();
  }, 60);
}

export function startSidebar() {
  document.body.append(menu);
  $("search").addEventListener("input", soon);
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") $("list").querySelector(".open")?.click();
    if (event.key !== "Escape" || !$("search").value) return;
    event.preventDefault();
    event.stopPropagation();
    $("search").value = "";
    show();
  });
  $("new").addEventListener("click", () => {
    showNew();
    closeIfNarrow();
    $("prompt").focus();
  });
  $("show").addEventListener("click", openSidebar);
  $("hide").addEventListener("click", () => sidebar.close());
  sidebar.addEventListener("close", () => {
    $("show").hidden = false;
    $("show").focus();
  });
  sidebar.addEventListener("click", (event) => event.target === sidebar && closeIfNarrow());
  $("import").addEventListener("click", () => $("load").click());
  $("load").addEventListener("change", importFile);
  $("export").addEventListener("click", () => attempt(async () => download("penstock-chats.json", await exported())));
  narrow.addEventListener("change", () => {
    sidebar.close();
    if (!narrow.matches) openSidebar();
  });
  on("list", soon);
  on("kept", soon);
  on("thread", soon);
  on("search", toSearch);
  if (!narrow.matches) openSidebar();
  return show();
}
