// The parameters of a conversation, the key and the colours.

import { on } from "./bus.js";
import { key } from "./api.js";
import { $, make, toast } from "./dom.js";
import { kept } from "./kept.js";
import { chosenModel, continuesTexts, listModels, modelInfo } from "./models.js";
import { CHOICES, NUMBERS, TEXT_TOKENS, stopsOf, toolsOf } from "./request.js";
import { narrow } from "./sidebar.js";
import { change, shown } from "./threads.js";

const panel = $("settings");
const form = $("fields");
const NAMES = ["system", ...NUMBERS.map(([name]) => name), ...CHOICES.map(([name]) => name), "stop", "tools"];

function field(label, control, about) {
  const told = about ? make("p", { id: "about-" + control.name }, about) : null;
  if (told) control.setAttribute("aria-describedby", told.id);
  return make("div", { className: "field" }, make("label", {}, label, control), told);
}

function select(name, options) {
  return make("select", { name }, ...options.map(([value, label]) => make("option", { value }, label)));
}

function build() {
  const numbers = NUMBERS.map(([name, label, min, max, step]) =>
    field(label, make("input", { name, type: "number", min, max, step, inputMode: min < 0 ? "text" : "decimal" })));
  const choices = CHOICES.map(([name, label, values]) =>
    field(label, select(name, [["", name === "tool_choice" ? "auto" : "default"],
      ...values.filter((value) => value !== "auto").map((value) => [value, value])])));
  const example = '[{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]';
  const buttons = make("div", { className: "buttons" },
    make("button", { type: "button", id: "reset" }, "Reset"), make("button", { type: "button", id: "defaults" }, "Use for new chats"));
  form.append(
    field("System prompt", make("textarea", { name: "system", rows: 3 })),
    make("div", { className: "pair" }, ...numbers, choices[0]),
    field("Stop texts", make("textarea", { name: "stop", rows: 2 }), "one per line, at most four; \\n is a line break"),
    field("Tools", make("textarea", { name: "tools", rows: 3, placeholder: example, spellcheck: false }),
      "functions that the model may call, as JSON; you enter what they return"),
    choices[1],
    buttons,
    make("h3", {}, "This browser"),
    field("API key", make("input", { name: "key", type: "password", autocomplete: "off" }),
      "only if the server asks for one; the page forgets it when the tab closes"),
    field("Colours", select("theme", [["auto", "as the system"], ["light", "light"], ["dark", "dark"]])),
  );
}

const control = (name) => form.elements[name];

/** The settings in the fields, as texts. Empty fields are left out. */
function read() {
  return Object.fromEntries(NAMES.map((name) => [name, control(name).value]).filter(([, value]) => value !== ""));
}

function show() {
  const { settings } = shown.thread.conversation;
  for (const name of NAMES) if (control(name) !== document.activeElement) control(name).value = settings[name] ?? "";
}

/** Shows what empty fields mean for the model. */
function showDefaults() {
  const own = modelInfo(chosenModel())?.sampling ?? {};
  for (const [name, , , , , otherwise] of NUMBERS) {
    const value = own[name];
    control(name).placeholder = value === undefined || value === null ? otherwise : String(Math.round(value * 1e4) / 1e4);
  }
  if (continuesTexts()) control("max_completion_tokens").placeholder = TEXT_TOKENS;
}

function openSettings() {
  if (panel.open) return;
  if (narrow.matches) panel.showModal();
  else panel.show();
  $("open").ariaExpanded = "true";
}

/** The most stop texts that a server takes, unless its operator changes that. */
const MAX_STOPS = 4;

/** What is wrong with the value of a field. Empty if nothing is. */
function faultOf(name) {
  const { value, validity } = control(name);
  const [, label, min, max, step] = NUMBERS.find(([known]) => known === name) ?? [];
  if (label && validity.badInput) return `${label} must be a number`;
  if (label && value !== "") {
    const number = Number(value);
    const range = max < 2 ** 31 ? `from ${min} to ${max}` : `at least ${min}`;
    if (number < min || number > max) return `${label} must be ${range}, not ${value}`;
    if (step === 1 && !Number.isInteger(number)) return `${label} must be a whole number, not ${value}`;
  }
  const count = name === "stop" ? stopsOf(value).length : 0;
  if (count > MAX_STOPS) return `there are ${count} stop texts, and at most ${MAX_STOPS} are allowed`;
  try {
    if (name === "tools") toolsOf(value);
  } catch (error) {
    return error.message;
  }
  return "";
}

function unmark(one) {
  one.removeAttribute("aria-invalid");
  one.closest(".field").querySelector(".wrong")?.remove();
}

function mark(one, text) {
  unmark(one);
  if (!text) return;
  one.setAttribute("aria-invalid", "true");
  one.closest(".field").append(make("p", { className: "wrong" }, text));
}

/** Marks the field that the server refused. */
export function blame(error) {
  for (const one of form.querySelectorAll("[aria-invalid]")) unmark(one);
  if (!error) return;
  const param = error.param?.split(/[.[]/)[0];
  const one = error.status === 401 ? control("key") : NAMES.includes(param) || param === "max_tokens"
    ? control(param === "max_tokens" ? "max_completion_tokens" : param) : null;
  if (!one) return;
  mark(one, error.message);
  // On a narrow screen, the panel would hide the error.
  if (narrow.matches && one.name !== "key") return;
  openSettings();
  one.focus();
}

/** Whether every parameter can be sent. If not, says what is wrong with the first one that cannot. */
export function settingsAreFine() {
  const wrong = NAMES.find(faultOf);
  if (!wrong) return true;
  const message = faultOf(wrong);
  blame({ param: wrong, message });
  if (narrow.matches) toast(message);
  return false;
}

const THEMES = ["auto", "light", "dark"];
function theme(name) {
  document.documentElement.dataset.theme = control("theme").value = name;
  kept.set(localStorage, "theme", name);
}

function changed(event) {
  const { name } = event.target;
  unmark(event.target);
  if (name === "key") key.set(event.target.value);
  else if (NAMES.includes(name)) change(shown.thread, { settings: read() });
}

export function startSettings() {
  build();
  control("key").value = key.get();
  theme(THEMES.find((name) => name === kept.get(localStorage, "theme")) ?? "auto");
  form.addEventListener("input", changed);
  form.addEventListener("change", ({ target }) => NAMES.includes(target.name) && mark(target, faultOf(target.name)));
  form.addEventListener("submit", (event) => event.preventDefault());
  control("key").addEventListener("change", listModels);
  control("theme").addEventListener("change", () => theme(control("theme").value));
  $("reset").addEventListener("click", () => {
    blame(null);
    change(shown.thread, { settings: {} });
    show();
  });
  $("defaults").addEventListener("click", () => {
    kept.set(localStorage, "defaults", read());
    toast("New chats begin with these parameters");
  });
  panel.addEventListener("close", () => ($("open").ariaExpanded = "false"));
  panel.addEventListener("click", (event) => event.target === panel && narrow.matches && panel.close());
  narrow.addEventListener("change", () => {
    if (!panel.open) return;
    panel.close();
    openSettings();
  });
  $("open").addEventListener("click", () => (panel.open ? panel.close() : openSettings()));
  $("close").addEventListener("click", () => {
    panel.close();
    $("open").focus();
  });
  on("thread", show);
  on("settings", show);
  on("models", showDefaults);
  on("refused", blame);
}
