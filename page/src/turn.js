// Creates the element of a message: its text, its reasoning, its calls and its buttons.

import { callCard, resultCard, resultsForm } from "./calls.js";
import { copy, fit, icon, make, quiet, sends } from "./dom.js";
import { thumbnail } from "./gallery.js";
import { MarkdownView } from "./markdown-view.js";

const STATES = {
  interrupted: "interrupted: the page was closed or reloaded while the answer came",
};

export function reasoning(text) {
  const node = make("div", { className: "text" }, text);
  return { node: make("details", { className: "reasoning" }, make("summary", {}, "Reasoning"), node), text: node };
}

function attachments(files) {
  const isAlone = files.filter((file) => file.picture).length === 1;
  const row = (file) =>
    file.picture
      ? make("li", { className: "shown" }, thumbnail(file, isAlone))
      : make("li", {}, icon("file"), make("span", {}, file.name));
  return make("ul", { className: "files", ariaLabel: "Attachments" }, ...files.map(row));
}

function branches({ index, siblings, choose }) {
  const go = (label, name, to) => {
    const button = quiet(label, name, () => choose(siblings[to]));
    button.disabled = !siblings[to];
    return button;
  };
  const place = make("span", { className: "place" }, `${index + 1}/${siblings.length}`);
  return make("span", { className: "branches" }, go("Previous version", "left", index - 1), place, go("Next version", "right", index + 1));
}

/** Replaces a message's text by a field in which it can be edited. */
function edit(turn, message, save) {
  const area = make("textarea", { value: message.content, ariaLabel: "Edit the message", rows: 1 });
  const cancel = make("button", { type: "button" }, "Cancel");
  const row = make("div", { className: "buttons" }, cancel, make("button", { className: "main" }, "Send"));
  const form = make("form", { className: "edit" }, area, row);
  const close = () => {
    form.replaceWith(turn.text);
    turn.node.classList.remove("editing");
    turn.below.hidden = false;
    turn.below.querySelector("button")?.focus();
  };
  cancel.addEventListener("click", close);
  area.addEventListener("input", () => fit(area));
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (sends(event)) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (area.value.trim() || message.attachments?.length) save(area.value.trim());
  });
  turn.text.replaceWith(form);
  turn.node.classList.add("editing");
  turn.below.hidden = true;
  fit(area);
  area.focus();
}

function buttons(turn, message, place, actions) {
  const { below } = turn;
  if (place.siblings.length > 1) below.append(branches({ ...place, choose: actions.choose }));
  if (message.content) below.append(quiet("Copy", "copy", () => copy(message.content, "Copied")));
  if (message.role === "user") below.append(quiet("Edit", "pencil", () => edit(turn, message, (text) => actions.edit(message, text))));
  if (message.role === "tool") below.append(quiet("Edit", "pencil", () => editResults(turn, message, actions)));
  if (message.role === "assistant") below.append(quiet("Try again", "retry", () => actions.again(message)));
  const unfinished = message.role === "assistant" && message.state !== "done" && message.content && !message.calls?.length;
  if (unfinished && place.isLast) {
    const goOn = quiet("Continue", "more", () => actions.goOn(message));
    goOn.append("Continue");
    below.append(goOn);
  }
  const isThought = message.state !== "done" && message.reasoning && !message.content;
  const said = [STATES[message.state], isThought && "reasoning cannot be continued", message.note].filter(Boolean).join(" · ");
  if (said) below.append(make("span", { className: "note" }, said));
}

function editResults(turn, message, actions) {
  turn.text.replaceChildren(resultsForm(message.results, (results) => actions.results(message.parent, results)));
  turn.below.hidden = true;
  turn.text.querySelector("textarea").focus();
}

const WHO = { user: "You", tool: "Tools" };

/** Creates the element of a message. `place`: {index, siblings, isLast, isLive}. `later`: its Markdown is rendered once it is visible. */
export function makeTurn(message, place, actions, later) {
  const node = make("article", { className: "turn " + message.role });
  const text = make("div", { className: "text" });
  const turn = { node, text, below: make("div", { className: "below" }), view: null, thoughts: null };
  node.dataset.id = message.id;
  const isShown = message.role === "assistant";
  node.append(make("h3", { className: isShown ? "who" : "away" }, WHO[message.role] ?? message.model ?? "Assistant"));
  if (message.reasoning) {
    turn.thoughts = reasoning(message.reasoning);
    node.append(turn.thoughts.node);
  }
  if (message.attachments?.length) node.append(attachments(message.attachments));
  node.append(text);
  if (message.role === "user") text.append(message.content);
  if (message.role === "tool") text.append(...message.results.map(resultCard));
  if (isShown) {
    turn.view = new MarkdownView(text);
    turn.render = () => {
      turn.render = null;
      text.classList.remove("raw");
      text.replaceChildren();
      // Open parts stay open.
      if (place.isLive) turn.view.push(message.content);
      else turn.view.set(message.content);
    };
    text.classList.add("raw");
    text.append(message.content);
    if (!later) turn.render();
  }
  turn.calls = make("div", { className: "calls" });
  node.append(turn.calls);
  if (message.calls?.length) turn.calls.append(...message.calls.map(callCard));
  if (message.calls?.length && place.isLast && !place.isLive && message.state === "done") {
    turn.calls.append(resultsForm(message.calls, (results) => actions.results(message.id, results)));
  }
  if (message.error) {
    const { message: said, small } = message.error;
    node.append(make("div", { className: "error", role: "alert" }, said, small ? make("small", {}, small) : null));
  }
  node.append(turn.below);
  if (!place.isLive) buttons(turn, message, place, actions);
  return turn;
}
