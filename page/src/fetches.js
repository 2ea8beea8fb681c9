// Downloads of models to the server's disk. They go on while the dialog is closed and end with the page; the next one continues them.

import { pull } from "./api.js";
import { emit } from "./bus.js";
import { make, toast } from "./dom.js";
import { sizeOf } from "./sizes.js";

// Downloads in progress by the names of their models: {controller, node, bar, text}.
export const fetches = new Map();

function show({ bar, text }, { total, completed = 0 }) {
  if (total) Object.assign(bar, { max: total, value: Math.min(completed, total) });
  text.textContent = total ? `${sizeOf(completed)} of ${sizeOf(total)}` : completed ? sizeOf(completed) : "asking for the file";
}

/** Fetches a model. Tells the page with `fetching`, and at the end with `fetched`. */
export async function startFetch(id) {
  if (fetches.has(id)) return;
  const [bar, text] = [make("progress", { ariaLabel: "Fetching " + id }), make("span", { className: "about" })];
  const run = { controller: new AbortController(), bar, text, node: make("div", { className: "fetch" }, bar, text) };
  fetches.set(id, run);
  show(run, {});
  emit("fetching");
  let error = null;
  try {
    for await (const progress of pull(id, run.controller.signal)) show(run, progress);
    toast(`${id} is on disk`);
  } catch (caught) {
    if (!run.controller.signal.aborted) error = new Error(`${id}: ${caught.message}`);
    if (error) toast(error.message);
  }
  fetches.delete(id);
  emit("fetched", id, error);
}
