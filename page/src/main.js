// The chat page: puts its parts together.

import { answer, stop } from "./answer.js";
import { attached, clearFiles, startAttachments } from "./attach.js";
import { emit, on } from "./bus.js";
import { $, copy, fit, placeIcons, toast } from "./dom.js";
import { kept } from "./kept.js";
import { startKeys } from "./keys.js";
import { startLog } from "./log.js";
import { chooseModel, chosenModel, hasModel, listModels, startModels } from "./models.js";
import { curl, requestBody } from "./request.js";
import { blame, startSettings, toolsAreFine } from "./settings.js";
import { startSidebar } from "./sidebar.js";
import { storage } from "./store.js";
import { append, change, chooseBranch, showNew, showStored, shown, shownPath } from "./threads.js";

const prompt = $("prompt");

// ---- what the user does with messages ----

/** Ends the answer in progress, if there is one. */
async function stopped(thread) {
  stop(thread);
  while (thread.run) await new Promise((resolve) => setTimeout(resolve, 10));
}

function ask(thread, parent, message) {
  blame(null);
  if (thread.conversation.model !== chosenModel()) change(thread, { model: chosenModel() });
  return answer(thread, { parent, message, model: chosenModel(), settings: thread.conversation.settings });
}

async function send(text) {
  const { thread } = shown;
  const files = attached();
  if (thread.run || (!text.trim() && !files.length) || !hasModel() || !toolsAreFine()) return;
  prompt.value = "";
  typed();
  clearFiles();
  const more = files.length ? { attachments: files } : {};
  thread.conversation.model = chosenModel();
  const message = append(thread, thread.head, { role: "user", content: text.trim(), ...more });
  await ask(thread, message.id);
}

const actions = {
  send,
  async edit(message, content) {
    const { thread } = shown;
    await stopped(thread);
    const more = message.attachments ? { attachments: message.attachments } : {};
    const edited = append(thread, message.parent, { role: "user", content, ...more });
    await ask(thread, edited.id);
  },
  async again(message) {
    const { thread } = shown;
    await stopped(thread);
    await ask(thread, message.parent);
  },
  async goOn(message) {
    const { thread } = shown;
    await stopped(thread);
    await ask(thread, message.parent, thread.messages.get(message.id));
  },
  async results(parent, results) {
    const { thread } = shown;
    await stopped(thread);
    const message = append(thread, parent, { role: "tool", results });
    await ask(thread, message.id);
  },
  async choose(message) {
    await stopped(shown.thread);
    chooseBranch(shown.thread, message);
  },
};

// ---- the message field ----

function ready() {
  const isBusy = Boolean(shown.thread.run);
  $("send").disabled = !hasModel() || (!prompt.value.trim() && !attached().length);
  $("send").hidden = isBusy;
  $("stop").hidden = !isBusy;
}

function typed() {
  kept.set(sessionStorage, "typed", prompt.value);
  fit(prompt);
  ready();
}

function startComposer() {
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send(prompt.value);
  });
  $("composer").addEventListener("files", ready);
  prompt.addEventListener("input", typed);
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "ArrowUp" && !prompt.value) {
      const buttons = document.querySelectorAll("#log .user button[aria-label=Edit]");
      if (buttons.length) event.preventDefault();
      buttons[buttons.length - 1]?.click();
    }
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send(prompt.value);
  });
  $("stop").addEventListener("click", () => {
    stop(shown.thread);
    prompt.focus();
  });
}

/** The request that the field and the conversation make, as a shell command. */
function copyCurl() {
  if (!toolsAreFine()) return;
  const { thread } = shown;
  const draft = prompt.value.trim();
  let list = shownPath();
  while (!draft && list.at(-1)?.role === "assistant") list = list.slice(0, -1);
  const words = draft || (list.length ? "" : "Name three rivers.");
  if (words || attached().length) list = [...list, { role: "user", content: words, attachments: attached() }];
  copy(curl(requestBody({ model: chosenModel(), list, settings: thread.conversation.settings })), "Copied as a curl line");
}

// ---- the rest of the page ----

function showTitle() {
  const { title } = shown.thread.conversation;
  $("title").textContent = title;
  document.title = title ? title + " · Penstock" : "Penstock";
}

function ended(thread, message, error) {
  if (thread === shown.thread) {
    $("said").textContent = message.error ? "" : "Answer: " + message.content.slice(0, 1000);
    blame(error);
    if (document.activeElement === document.body || document.activeElement === $("stop")) prompt.focus();
  }
  ready();
  listModels();
}

async function start() {
  placeIcons();
  startLog(actions);
  startSettings();
  startComposer();
  startAttachments();
  startKeys();
  $("curl").addEventListener("click", copyCurl);
  on("thread", () => {
    showTitle();
    ready();
    chooseModel(shown.thread.conversation.model);
  });
  on("title", showTitle);
  on("messages", showTitle);
  on("models", (how) => {
    ready();
    if (how === "chosen") change(shown.thread, { model: chosenModel() });
  });
  on("running", () => {
    $("said").textContent = "Generating";
    ready();
  });
  on("ended", ended);
  on("unkept", (error) => toast("The browser did not keep this conversation: " + error.message));
  const id = kept.get(sessionStorage, "shown");
  if (!id || !(await showStored(id))) showNew();
  prompt.value = kept.get(sessionStorage, "typed", "");
  fit(prompt);
  await Promise.all([startSidebar(), startModels().then(() => chooseModel(shown.thread.conversation.model))]);
  if (!storage.keeps) toast("This browser keeps no data: conversations are lost when the tab closes");
  if (matchMedia("(pointer: fine)").matches && document.activeElement === document.body) prompt.focus();
  emit("started");
}

start();
