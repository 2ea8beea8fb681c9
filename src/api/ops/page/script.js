"use strict";
const $ = (id) => document.getElementById(id);

/** Makes an element with properties and children. A string child becomes a text node, never HTML. */
function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

/** Values in the browser's storage. Without storage, the page works but forgets. */
const kept = {
  get(store, name, otherwise) {
    try { return JSON.parse(store.getItem("penstock." + name)) ?? otherwise; } catch { return otherwise; }
  },
  set(store, name, value) {
    try { store.setItem("penstock." + name, JSON.stringify(value)); } catch { /* the storage is full or disabled */ }
  },
};

// name, label, minimum, maximum, step, meaning of an empty field
const NUMBERS = [
  ["temperature", "Temperature", 0, 2, 0.1, "1"],
  ["max_completion_tokens", "Max tokens", 1, 2 ** 31, 1, "no limit"],
  ["top_p", "Top p", 0, 1, 0.05, "1"],
  ["top_k", "Top k", -1, 2 ** 31, 1, "off"],
  ["min_p", "Min p", 0, 1, 0.01, "0"],
  ["seed", "Seed", -(2 ** 53), 2 ** 53, 1, "random"],
  ["repetition_penalty", "Repetition penalty", 0, 10, 0.05, "1"],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1, "0"],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1, "0"],
];
for (const [name, label, min, max, step, empty] of NUMBERS) {
  const field = make("input", { name, type: "number", min, max, step, placeholder: empty, inputMode: min < 0 ? "text" : "decimal" });
  $("numbers").append(make("div", { className: "field" }, make("label", {}, label, field)));
}
const fields = $("fields").elements;
const remembered = ["system", "stop", ...NUMBERS.map(([name]) => name)];

/** Turns: {role, content, reasoning, note, error}. A failed answer keeps the text that it had, and the user can try again. */
let turns = kept.get(sessionStorage, "turns", []);
let models = [];
let running = null; // the AbortController of the answer in progress

// ---- the request ----

function parameters() {
  const out = {};
  for (const [name] of NUMBERS) {
    if (fields[name].value !== "") out[name] = Number(fields[name].value);
  }
  const stop = fields.stop.value.split("\n").filter(Boolean).map((text) => text.replaceAll("\\n", "\n"));
  if (stop.length) out.stop = stop;
  return out;
}

/** The conversation for the server. It leaves out questions without an answer, because many templates want alternating roles. */
function messages(upTo) {
  const spoken = turns.slice(0, upTo).filter((turn) => turn.role === "user" || turn.content);
  const answered = spoken.filter((turn, i) => turn.role !== "user" || spoken[i + 1]?.role !== "user");
  const system = fields.system.value.trim();
  return [...(system ? [{ role: "system", content: system }] : []), ...answered.map(({ role, content }) => ({ role, content }))];
}

function requestBody(list) {
  return { model: $("model").value, messages: list, ...parameters(), stream: true, stream_options: { include_usage: true } };
}

function address(path) {
  return new URL(path, document.baseURI);
}

function headers(more = {}) {
  const key = fields.key.value.trim();
  return { ...more, ...(key ? { authorization: "Bearer " + key } : {}) };
}

/** The request as a shell command. It names a variable instead of the key. */
function curl() {
  const draft = $("prompt").value.trim();
  let list = messages(turns.length);
  if (draft) list = [...list.slice(0, list.at(-1)?.role === "user" ? -1 : undefined), { role: "user", content: draft }];
  else while (list.at(-1)?.role === "assistant") list.pop();
  if (!list.some((message) => message.role === "user")) list.push({ role: "user", content: "Name three rivers." });
  const quote = (text) => "'" + text.replaceAll("'", "'\\''") + "'";
  const parts = ["curl -N " + quote(address("v1/chat/completions").href), "-H 'content-type: application/json'"];
  if (fields.key.value.trim()) parts.push('-H "authorization: Bearer $PENSTOCK_API_KEY"');
  return [...parts, "-d " + quote(JSON.stringify(requestBody(list)))].join(" \\\n  ");
}

class Refused extends Error {
  constructor(error, response) {
    super(error?.message || "the server answered with status " + response.status);
    this.param = error?.param;
    this.small = [response.status, error?.code, response.headers.get("x-request-id")].filter(Boolean).join(" · ");
    this.status = response.status;
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  return new Refused(body?.error, response);
}

/** Yields the data of each server-sent event. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) yield line.slice(5).trimStart();
    }
  }
}

// ---- the conversation on the page ----

const scroller = $("scroll");
let follows = true;
const atEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;
function toEnd() {
  if (follows) scroller.scrollTop = scroller.scrollHeight;
  $("latest").hidden = follows || atEnd();
}
scroller.addEventListener("scroll", () => {
  follows = atEnd();
  $("latest").hidden = follows;
});
$("latest").addEventListener("click", () => {
  follows = true;
  toEnd();
  $("prompt").focus();
});

function quiet(label, action) {
  const button = make("button", { type: "button", className: "quiet" }, label);
  button.addEventListener("click", action);
  return button;
}

/** Makes the element of turn `at`, with its buttons. */
function element(at) {
  const turn = turns[at];
  const isUser = turn.role === "user";
  const node = make("article", { className: "turn " + turn.role });
  const text = make("div", { className: "text" }, turn.content);
  const below = make("div", { className: "below" });
  node.append(make("h2", { className: isUser ? "away" : "" }, isUser ? "You" : turn.model));
  if (turn.reasoning) node.append(reasoning(turn.reasoning).node);
  node.append(text);
  if (turn.error) {
    const { message, small } = turn.error;
    node.append(make("div", { className: "error", role: "alert" }, message, ...(small ? [make("small", {}, small)] : [])));
  }
  if (turn.content) below.append(quiet("Copy", () => copy(turn.content, "Copied")));
  if (isUser) below.append(quiet("Edit", () => edit(at)));
  if (!isUser && at === turns.length - 1) below.append(quiet("Try again", () => again(at)));
  if (turn.note) below.append(make("span", {}, turn.note));
  node.append(below);
  return node;
}

function reasoning(text) {
  const body = make("div", { className: "text" }, new Text(text));
  return { body, node: make("details", { className: "reasoning" }, make("summary", {}, "Reasoning"), body) };
}

const STARTERS = ["Name three rivers.", "What is a penstock?", "Write a haiku about water."];
function show() {
  const log = $("log");
  log.replaceChildren(...turns.map((_, at) => element(at)));
  if (!turns.length) {
    const starters = STARTERS.map((text) => {
      const button = make("button", { type: "button" }, text);
      button.addEventListener("click", () => send(text));
      return button;
    });
    log.append(make("div", { id: "empty" }, make("p", {}, "What would you like to ask?"), make("div", {}, ...starters)));
  }
  kept.set(sessionStorage, "turns", turns);
  follows = true;
  toEnd();
}

function edit(at) {
  stop();
  $("prompt").value = turns[at].content;
  turns = turns.slice(0, at);
  show();
  fit();
  $("prompt").focus();
}

function again(at) {
  turns = turns.slice(0, at);
  answer();
}

// ---- sending, and reading the answer ----

function send(text) {
  if (running || !text.trim() || $("model").disabled) return;
  turns.push({ role: "user", content: text.trim() });
  $("prompt").value = "";
  fit();
  answer();
}

function stop() {
  running?.abort();
}

function busy(on) {
  $("stop").hidden = !on;
  $("send").hidden = on;
  $("log").ariaBusy = String(on);
}

const count = new Intl.NumberFormat("en");
const rate = (tokens, ms) => (tokens > 1 && ms > 0 ? count.format(Math.round((tokens - 1) / ms * 10000) / 10) + " tokens/s" : "");

/** Shows the pieces of an answer as they arrive, once per animation frame. */
function writer(node, turn) {
  const text = node.querySelector(".text");
  const body = text.appendChild(new Text());
  const waiting = make("span", { className: "waiting" }, "Waiting for the first token");
  text.before(waiting);
  let thoughts = null;
  let pending = { content: "", reasoning: "" };
  let frame = 0;
  const flush = () => {
    cancelAnimationFrame(frame);
    frame = 0;
    if (pending.reasoning) {
      if (!thoughts) {
        thoughts = reasoning("");
        thoughts.node.open = true;
        text.before(thoughts.node);
      }
      thoughts.body.firstChild.appendData(pending.reasoning);
    }
    body.appendData(pending.content);
    if (pending.content || pending.reasoning) waiting.remove();
    pending = { content: "", reasoning: "" };
    toEnd();
  };
  return {
    flush,
    add(kind, piece) {
      turn[kind] = (turn[kind] ?? "") + piece;
      pending[kind] += piece;
      frame ||= requestAnimationFrame(flush);
    },
  };
}

/** Reads one answer into `turn`. Returns the note below the answer. */
async function read(turn, node, controller) {
  const start = performance.now();
  const seen = { first: 0, last: 0, pieces: 0, usage: null, reason: null, done: false };
  const sent = JSON.stringify(requestBody(messages(turns.indexOf(turn))));
  const out = writer(node, turn);
  try {
    const response = await fetch(address("v1/chat/completions"), {
      method: "POST", headers: headers({ "content-type": "application/json" }), body: sent, signal: controller.signal,
    });
    if (!response.ok) throw await refusal(response);
    for await (const data of events(response.body)) {
      if (data === "[DONE]") {
        seen.done = true;
        continue;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refused(chunk.error, response);
      seen.usage = chunk.usage ?? seen.usage;
      const choice = chunk.choices[0];
      if (!choice) continue;
      seen.reason = choice.finish_reason ?? seen.reason;
      for (const [kind, piece] of [["reasoning", choice.delta.reasoning_content], ["content", choice.delta.content]]) {
        if (!piece) continue;
        out.add(kind, piece);
        seen.pieces += 1;
        seen.last = performance.now();
        seen.first ||= seen.last;
      }
      $("rate").textContent = rate(seen.pieces, seen.last - seen.first);
    }
    if (!seen.done) throw new Error("the connection ended before the answer did");
  } catch (error) {
    if (controller.signal.aborted) {
      seen.reason = "stopped";
    } else {
      const message = error instanceof TypeError ? "the server cannot be reached, or it closed the connection" : error.message;
      turn.error = { message, small: error.small };
      blame(error);
      controller.abort();
    }
  }
  out.flush();
  return note(seen, start);
}

function note({ first, last, pieces, usage, reason }, start) {
  const tokens = usage?.completion_tokens ?? pieces;
  const context = models.find((model) => model.id === $("model").value)?.max_model_len;
  const said = [];
  if (reason === "stopped") said.push("stopped");
  if (reason === "length") said.push("cut at the token limit");
  if (tokens) said.push((usage ? "" : "about ") + count.format(tokens) + (tokens === 1 ? " token" : " tokens"), rate(tokens, last - first));
  if (first) said.push("first after " + ((first - start) / 1000).toFixed(2) + " s");
  if (usage) said.push(count.format(usage.total_tokens) + (context ? " of " + count.format(context) : "") + " tokens of context");
  return said.filter(Boolean).join(" · ");
}

async function answer() {
  const turn = { role: "assistant", model: $("model").value, content: "" };
  blame(null);
  turns.push(turn);
  show();
  const node = $("log").lastElementChild;
  node.classList.add("running");
  node.querySelector(".below").replaceChildren();
  const controller = running = new AbortController();
  busy(true);
  $("said").textContent = "Generating";
  turn.note = await read(turn, node, controller);
  running = null;
  busy(false);
  $("rate").textContent = "";
  const followed = follows;
  // the user may have removed the turn by editing an earlier one
  if (turns.includes(turn)) {
    const at = scroller.scrollTop;
    show();
    if (!followed) scroller.scrollTop = at;
  }
  $("said").textContent = turn.error ? "" : "Answer: " + turn.content.slice(0, 1000);
  if (document.activeElement === document.body) $("prompt").focus();
  ready();
  listModels();
}

/** Marks the field that the server refused. */
function blame(error) {
  for (const wrong of $("fields").querySelectorAll(".wrong")) wrong.remove();
  for (const field of $("fields").querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  const field = error?.status === 401 ? fields.key : fields[error?.param === "max_tokens" ? "max_completion_tokens" : error?.param];
  if (!error || !field?.name) return;
  field.setAttribute("aria-invalid", "true");
  field.closest(".field").append(make("p", { className: "wrong" }, error.message));
  // on a narrow screen, the panel would hide the error
  if (narrow.matches && field !== fields.key) return;
  openSettings();
  field.focus();
}

// ---- models, parameters, the rest of the page ----

async function listModels() {
  const picker = $("model");
  try {
    const response = await fetch(address("v1/models"), { headers: headers() });
    if (!response.ok) throw await refusal(response);
    models = (await response.json()).data;
  } catch (error) {
    picker.replaceChildren(make("option", {}, "no models"));
    picker.disabled = true;
    toast(error instanceof TypeError ? "The server cannot be reached: trying again" : error.message);
    ready();
    if (error.status === 401) blame(error);
    else setTimeout(listModels, 3000);
    return;
  }
  const wanted = picker.disabled ? kept.get(localStorage, "model") : picker.value;
  picker.replaceChildren(...models.map((model) => make("option", { value: model.id }, model.id + (model.loaded ? "" : " (not loaded)"))));
  const chosen = models.find((model) => model.id === wanted) ?? models.find((model) => model.loaded) ?? models[0];
  if (chosen) picker.value = chosen.id;
  picker.disabled = !models.length;
  ready();
}

function ready() {
  $("send").disabled = $("model").disabled || !$("prompt").value.trim();
}

/** Fits the height of the message field to its text. */
function fit() {
  const prompt = $("prompt");
  prompt.style.height = "auto";
  prompt.style.height = prompt.scrollHeight + 2 + "px";
  ready();
}

let toastTimer = 0;
function toast(text) {
  $("toast").textContent = text;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => ($("toast").textContent = ""), 4000);
}

async function copy(text, said) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // the clipboard API needs HTTPS
    const area = make("textarea", { value: text, className: "away" });
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    if (!copied) return toast("The browser does not let this page copy");
  }
  toast(said);
}

const settings = $("settings");
const narrow = matchMedia("(max-width: 55rem)");
function openSettings() {
  if (settings.open) return;
  if (narrow.matches) settings.showModal();
  else settings.show();
  $("open").ariaExpanded = "true";
}
settings.addEventListener("close", () => ($("open").ariaExpanded = "false"));
settings.addEventListener("click", (event) => event.target === settings && narrow.matches && settings.close());
narrow.addEventListener("change", () => {
  if (!settings.open) return;
  settings.close();
  openSettings();
});
$("open").addEventListener("click", () => (settings.open ? settings.close() : openSettings()));
$("close").addEventListener("click", () => {
  settings.close();
  $("open").focus();
});
$("fields").addEventListener("input", (event) => {
  if (!event.target.name) return;
  event.target.removeAttribute("aria-invalid");
  event.target.closest(".field").querySelector(".wrong")?.remove();
  kept.set(localStorage, "parameters", Object.fromEntries(remembered.map((name) => [name, fields[name].value])));
  kept.set(sessionStorage, "key", fields.key.value);
});
$("fields").addEventListener("submit", (event) => event.preventDefault());
fields.key.addEventListener("change", listModels);
$("reset").addEventListener("click", () => {
  for (const name of remembered) fields[name].value = "";
  kept.set(localStorage, "parameters", {});
  blame(null);
});

const THEMES = ["auto", "light", "dark"];
function theme(name) {
  document.documentElement.dataset.theme = $("theme").value = name;
  kept.set(localStorage, "theme", name);
}
$("theme").addEventListener("change", () => theme($("theme").value));
$("model").addEventListener("change", () => kept.set(localStorage, "model", $("model").value));
$("curl").addEventListener("click", () => copy(curl(), "Copied as a curl line"));
$("new").addEventListener("click", () => {
  stop();
  turns = [];
  show();
  $("prompt").focus();
});
$("stop").addEventListener("click", () => {
  stop();
  $("prompt").focus();
});
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send($("prompt").value);
});
$("prompt").addEventListener("input", fit);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send($("prompt").value);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !(settings.open && narrow.matches)) stop();
});

theme(THEMES.find((name) => name === kept.get(localStorage, "theme")) ?? "auto");
for (const [name, value] of Object.entries(kept.get(localStorage, "parameters", {}))) {
  if (remembered.includes(name)) fields[name].value = value;
}
fields.key.value = kept.get(sessionStorage, "key", "");
show();
fit();
listModels();
if (matchMedia("(pointer: fine)").matches) $("prompt").focus();
