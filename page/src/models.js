// The models that the server has, and the picker that names one.

import { models as fetchModels } from "./api.js";
import { emit } from "./bus.js";
import { $, make, toast } from "./dom.js";
import { kept } from "./kept.js";

let models = [];

export const modelInfo = (id) => models.find((model) => model.id === id);
export const chosenModel = () => $("model").value;
export const hasModel = () => !$("model").disabled;
export const takesImages = () => modelInfo(chosenModel())?.input_modalities?.includes("image") ?? false;

/** Fetches the list, again after a while if the server cannot be reached. */
export async function listModels() {
  const picker = $("model");
  try {
    models = await fetchModels();
  } catch (error) {
    picker.replaceChildren(make("option", {}, "no models"));
    picker.disabled = true;
    emit("models");
    if (error.status === 401) return emit("refused", error);
    toast(error instanceof TypeError ? "The server cannot be reached: trying again" : error.message);
    setTimeout(listModels, 3000);
    return;
  }
  const wanted = picker.disabled ? kept.get(localStorage, "model") : picker.value;
  picker.replaceChildren(...models.map((model) => make("option", { value: model.id }, model.id + (model.loaded ? "" : " (not loaded)"))));
  picker.disabled = !models.length;
  chooseModel([wanted, models.find((model) => model.loaded)?.id, models[0]?.id].find(modelInfo));
}

export function chooseModel(id) {
  if (!modelInfo(id)) return;
  $("model").value = id;
  emit("models");
}

export function startModels() {
  $("model").addEventListener("change", () => {
    kept.set(localStorage, "model", chosenModel());
    emit("models", "chosen");
  });
  return listModels();
}
