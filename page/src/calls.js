// Tool calls and their results. The page runs nothing: the user enters what a tool would return.

import { codeBlock, highlight } from "./code.js";
import { fit, icon, make, sends } from "./dom.js";

/** JSON with line breaks. Null if the text is not JSON, or not complete yet. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

function card(title, ...content) {
  return make("div", { className: "call" }, make("div", { className: "call-head" }, icon("tool"), title), ...content);
}

export function callCard(call) {
  const text = pretty(call.arguments);
  const { node, code } = codeBlock(text ?? call.arguments, "json");
  if (text !== null) highlight(code, text, "json");
  return card(make("span", {}, "Calls ", make("code", {}, call.name || "…")), node);
}

export function resultCard({ name, content }) {
  const title = make("span", {}, "Result of ", make("code", {}, name || "the tool"));
  return card(title, make("pre", { className: "result", tabIndex: 0 }, content));
}

/** A form with a field for the result of each call. Passes the results to `send`. */
export function resultsForm(calls, send, label = "Send results") {
  const placeholder = "What the tool returns: text or JSON";
  const areas = calls.map((call) => make("textarea", { rows: 2, value: call.content ?? "", placeholder }));
  const fields = calls.map((call, i) => make("label", {}, "Result of " + call.name, areas[i]));
  const buttons = make("div", { className: "buttons" }, make("button", { className: "main" }, label));
  const form = make("form", { className: "results" }, ...fields, buttons);
  form.addEventListener("input", (event) => fit(event.target));
  form.addEventListener("keydown", (event) => {
    if (sends(event) && event.target.localName === "textarea") {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(calls.map((call, i) => ({ id: call.id, name: call.name, content: areas[i].value })));
  });
  return form;
}
