// The server's models, and the picker that selects one.

import { models as fetchModels } from "./api.js";
import { emit } from "./bus.js";
import { $, make, toast } from "./dom.js";
import { kept } from "./kept.js";

let models = [];
/** The model of the shown conversation, even while the server does not list it. */
let wanted = null;
let timer = 0;

export const modelInfo = (id) => models.find((model) => model.id === id);
export const chosenModel = () => $("model").value;
/** Whether a model is available. While the server cannot be reached, the picker shows the last list and is disabled. */
export const hasModel = () => !$("model").disabled && Boolean(modelInfo(chosenModel()));
/** Whether a model is a base model, which continues texts and does not chat. */
export const continuesTexts = (id = chosenModel()) => modelInfo(id)?.kind === "completion";
/** The models of the last list. Models that chat come first. */
export const allModels = () => models;
/** The model with which new chats begin in this browser. */
export const defaultModel = {
  get: () => kept.get(localStorage, "default", null),
  set: (id) => kept.set(localStorage, "default", id),
};
const canSee = ({ kind, capabilities, input_modalities: inputs }) =>
  kind !== "completion" && Boolean(capabilities?.includes("vision") || inputs?.includes("image"));
/** Whether a model reads pictures. A base model gets texts only. */
export const readsPictures = (id = chosenModel()) => canSee(modelInfo(id) ?? {});

/** Most models that advice names. */
const MAX_NAMED = 5;

/** Says that a model reads no pictures, and which ones do. */
export function whoReads(id = chosenModel()) {
  const ids = models.filter(canSee).map((model) => model.id);
  const more = ids.length > MAX_NAMED ? ` and ${ids.length - MAX_NAMED} more` : "";
  const who = ids.length ? "on this server, these do: " + ids.slice(0, MAX_NAMED).join(", ") + more : "no model of this server does";
  return `${id} reads no pictures; ${who}`;
}

const chats = (model) => model.kind === "chat";
const KINDS = { completion: " · base model", embedding: " · embeddings" };

function option(model) {
  const text = model.id + (KINDS[model.kind] ?? "") + (model.loaded ? "" : " (not loaded)");
  return make("option", { value: model.id, disabled: model.kind === "embedding" }, text);
}

/** Fetches the list. Tries again after a while if the server cannot be reached. */
export async function listModels() {
  const picker = $("model");
  clearTimeout(timer);
  try {
    models = await fetchModels();
  } catch (error) {
    if (!models.length) picker.replaceChildren(make("option", { value: "" }, "no models"));
    picker.disabled = true;
    emit("models");
    if (error.status === 401) return emit("refused", error);
    toast(error instanceof TypeError ? "The server cannot be reached: trying again" : error.message);
    timer = setTimeout(listModels, 3000);
    return;
  }
  const before = picker.value;
  picker.replaceChildren(...models.map(option));
  picker.disabled = !models.length;
  if (!models.length) picker.replaceChildren(make("option", { value: "" }, "no models"));
  const loaded = models.filter((model) => model.loaded);
  const usual = [defaultModel.get(), kept.get(localStorage, "model"), loaded.find(chats)?.id, loaded[0]?.id, models[0]?.id];
  picker.value = [wanted, before, ...usual].find(modelInfo) ?? "";
  emit("models");
}

/** Selects the model of a conversation, now or with the next list that contains it. */
export function chooseModel(id) {
  wanted = id;
  if (modelInfo(id)) $("model").value = id;
  emit("models");
}

export function startModels() {
  $("model").addEventListener("change", () => {
    wanted = chosenModel();
    kept.set(localStorage, "model", wanted);
    emit("models", "chosen");
  });
  return listModels();
}
