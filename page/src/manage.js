// The dialog that manages the server's models: what is loaded, what each one can do, what can be fetched and what fits.

import { call } from "./api.js";
import { on } from "./bus.js";
import { $, make, question } from "./dom.js";
import { fetches, startFetch } from "./fetches.js";
import { kept } from "./kept.js";
import { allModels, chooseModel, chosenModel, defaultModel, listModels, readsPictures } from "./models.js";
import { fitOf, sizeOf } from "./sizes.js";
import { change, shown } from "./threads.js";

const dialog = $("models");
/** How often the states of the models are asked for while one changes [ms]. */
const LOOK_EVERY = 1000;

// What operators see of each model, by its id. Null if this page may not manage models.
let states = null;
// Sizes of files [bytes], and abilities, by ids.
const sizes = new Map();
const abilities = new Map();
let found = [];
let device = null;
// Actions that load, unload or delete a model and have not ended, by its id.
const busy = new Map();
let timer = 0;

const MARKS = { tools: "tools", thinking: "reasoning", vision: "pictures" };

/** What a row says about a model of the server. */
function marksOf(model) {
  const state = states?.get(model.id);
  const isLoading = busy.has(model.id) || state?.state === "loading";
  const marks = [isLoading ? "working…" : model.loaded ? "loaded" : state?.state === "failed" ? "failed" : "", KINDS[model.kind]];
  const can = new Set((abilities.get(model.id) ?? []).map((name) => MARKS[name]));
  if (readsPictures(model.id)) can.add(MARKS.vision);
  const onDisk = sizes.has(model.id) ? sizeOf(sizes.get(model.id)) + " on disk" : "";
  const taken = state?.bytes ? sizeOf(state.bytes.total) + " in memory" : onDisk;
  return [...marks, ...(model.kind === "chat" ? can : []), taken, model.id === defaultModel.get() ? "default" : ""].filter(Boolean);
}
const KINDS = { completion: "base model: continues texts", embedding: "embeddings" };

/** A button of a row. Its whole name says which model it is about. `place`: what stays of it when its label changes. */
function button(label, id, action, place = label) {
  const node = make("button", { type: "button", className: "quiet bordered", ariaLabel: `${label} ${id}` }, label);
  node.dataset.what = `${place} ${id}`;
  node.addEventListener("click", action);
  return node;
}

function row(name, marks, buttons, ...more) {
  const words = marks.map((text) => make("span", { className: text === "loaded" ? "mark on" : "mark" }, text));
  const about = make("div", { className: "told" }, make("strong", {}, name), make("span", { className: "marks" }, ...words));
  return make("li", {}, about, make("div", { className: "do" }, ...buttons), ...more);
}

function servedRow(model) {
  const { id } = model;
  const isDefault = defaultModel.get() === id;
  const choose = button(id === chosenModel() ? "Chosen" : "Use", id, () => use(id));
  choose.disabled = id === chosenModel() || model.kind === "embedding";
  const star = button("Default", id, () => { defaultModel.set(isDefault ? null : id); show(); });
  star.ariaPressed = String(isDefault);
  star.disabled = model.kind === "embedding";
  const load = model.loaded ? button("Unload", id, () => unload(id), "load") : button("Load", id, () => act(id, "load"), "load");
  const remove = button("Delete", id, () => erase(id));
  return row(id, marksOf(model), [choose, star, ...(states ? [load, remove] : [])]);
}

function foundRow(model) {
  const { id, source, base, bytes, needed, licence, context, on_disk: isHere, partial, downloads } = model;
  if (source === "repository") {
    const told = [downloads ? new Intl.NumberFormat("en").format(downloads) + " downloads" : ""].filter(Boolean);
    return row(id, told, [button("Show models", id, () => search(id, true))]);
  }
  const run = fetches.get(id);
  const rest = partial && bytes ? Math.floor((100 * partial) / bytes) + " % on disk" : "";
  const size = bytes ? sizeOf(bytes) : "size unknown";
  const told = [isHere ? "on disk" : rest, base ? KINDS.completion : "", size, isHere ? "" : fitOf(needed, device),
    context ? new Intl.NumberFormat("en").format(context) + " tokens" : "", licence ?? ""];
  const fetch = run ? button("Cancel", id, () => run.controller.abort(), "fetch")
    : button(partial ? "Continue" : "Fetch", id, () => startFetch(id), "fetch");
  return row(id, told.filter(Boolean), isHere ? [] : [fetch], run?.node ?? null);
}

/** Shows both lists again. The focus stays on the button that had it, or goes to one of the same row. */
function show() {
  const { what } = document.activeElement?.dataset ?? {};
  const place = what && [...dialog.querySelectorAll("li")].indexOf(document.activeElement.closest("li"));
  $("served").replaceChildren(...allModels().map(servedRow));
  $("found").replaceChildren(...found.map(foundRow));
  $("more").hidden = !states;
  if (!what || !dialog.open) return;
  const same = [...dialog.querySelectorAll("[data-what]")].find((node) => node.dataset.what === what && !node.disabled);
  const near = dialog.querySelectorAll("li")[place]?.querySelector("button:enabled");
  (same ?? near ?? $("models-title")).focus();
}

const wrong = (error) => ($("models-wrong").textContent = error ? error.message : "");

// ---- what the server knows ----

/** Asks for the states. A server that lets this page manage nothing says why. */
async function look() {
  clearTimeout(timer);
  try {
    const { data } = await call("GET", "admin/models");
    states = new Map(data.map((model) => [model.id, model]));
    $("models-about").textContent = "Loading, fetching and deleting change the server for everyone. A default is kept in this browser.";
  } catch (error) {
    states = null;
    $("models-about").textContent = error.message;
  }
  show();
  const changes = states && [...states.values()].some(({ state }) => state === "loading" || state === "downloading");
  if (dialog.open && changes) timer = setTimeout(look, LOOK_EVERY);
}

/** Asks for sizes and abilities, which the server reads from the files without loading a model. */
async function learn() {
  const { models: tags } = await call("GET", "api/tags");
  const idOf = (name) => allModels().find(({ id }) => id === name || id + ":latest" === name)?.id ?? name;
  for (const { name, size } of tags) sizes.set(idOf(name), size);
  show();
  for (const { name } of tags) {
    const id = idOf(name);
    if (!dialog.open || abilities.has(id)) continue;
    abilities.set(id, (await call("POST", "api/show", { model: id }).catch(() => null))?.capabilities ?? []);
    show();
  }
}

/** Asks for everything again, and searches again for the words of the last search. */
async function renew() {
  await Promise.all([listModels(), look()]);
  await Promise.all([learn().catch(wrong), search()]);
}

// ---- the user's actions ----

function use(id) {
  kept.set(localStorage, "model", id);
  chooseModel(id);
  change(shown.thread, { model: id });
  dialog.close();
  $("prompt").focus();
}

/** Runs an action about a model, and shows what it has changed. Returns the error, if there is one. */
async function work(id, action) {
  if (busy.has(id)) return null;
  wrong(null);
  const done = action().then(() => null, (caught) => caught);
  busy.set(id, done);
  show();
  const error = await done;
  busy.delete(id);
  await Promise.all([listModels(), look()]);
  return error;
}

async function act(id, what, more = {}) {
  wrong(await work(id, () => call("POST", "admin/models/" + what, { model: id, ...more })));
}

async function unload(id) {
  const error = await work(id, () => call("POST", "admin/models/unload", { model: id }));
  if (error?.status !== 409) return wrong(error);
  const text = `Requests use ${id}. Unload it and end them with an error?`;
  if (await question({ text, yes: "Unload" })) await act(id, "unload", { force: true });
}

async function erase(id) {
  if (!(await question({ text: `Delete ${id} from the server’s disk? It can be fetched again.`, yes: "Delete" }))) return;
  await busy.get(id);
  const error = await work(id, () => call("DELETE", "api/delete", { model: id }));
  wrong(error);
  if (!error) await search();
}

let asked = 0;
async function search(words = $("words").value, hub = $("hub").checked) {
  if (!states) return;
  $("words").value = words;
  $("hub").checked = hub;
  const number = (asked += 1);
  $("found-said").textContent = "Searching…";
  const query = new URLSearchParams({ search: words, hub });
  const answer = await call("GET", "admin/catalogue?" + query).catch((error) => ({ data: [], device, hub_error: error.message }));
  if (number !== asked) return;
  ({ data: found, device } = answer);
  const memory = device?.total ? `; ${sizeOf(device.free)} of ${sizeOf(device.total)} of memory is free (${device.name})` : "";
  $("found-said").textContent = (found.length === 1 ? "1 result" : found.length + " results") + memory;
  if (answer.hub_error) $("found-said").textContent += ". The hub: " + answer.hub_error;
  show();
}

async function open() {
  wrong(null);
  dialog.showModal();
  show();
  await renew();
}

export function startManager() {
  $("manage").addEventListener("click", open);
  $("find").addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
  on("models", () => dialog.open && show());
  on("fetching", () => dialog.open && show());
  on("fetched", (id, error) => {
    wrong(error);
    renew();
  });
}
