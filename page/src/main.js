// The chat page: puts its parts together.

import { answer, stop } from "./answer.js";
import { attached, clearFiles, startAttachments } from "./attach.js";
import { on } from "./bus.js";
import { $, copy, fit, isTouch, placeIcons, question, sends, toast } from "./dom.js";
import { startGallery } from "./gallery.js";
import { kept } from "./kept.js";
import { startKeys } from "./keys.js";
import { startLog } from "./log.js";
import { startManager } from "./manage.js";
import { chooseModel, chosenModel, continuesTexts, hasModel, listModels, readsPictures, startModels, whoReads } from "./models.js";
import { inlined, picturesOf } from "./pictures.js";
import { curl, requestBody } from "./request.js";
import { blame, settingsAreFine, startSettings } from "./settings.js";
import { startSidebar } from "./sidebar.js";
import { storage } from "./store.js";
import { append, change, chooseBranch, draftId, showNew, showStored, shown, shownPath, unkept } from "./threads.js";
import { download, fileOf } from "./transfer.js";
import { path } from "./tree.js";

const prompt = $("prompt");

// ---- the user's actions on messages ----

/** Ends the answer in progress, if there is one. */
async function stopped(thread) {
  stop(thread);
  while (thread.run) await new Promise((resolve) => setTimeout(resolve, 10));
}

/** Whether a model is available, the parameters can be sent, and the user wants it if the model reads none of the pictures that go before
 * its answer. If not, says what is missing. `head`: the last message before `more`. */
async function mayAsk(thread, head, more = {}) {
  if (!hasModel()) toast("There is no model to ask: the server cannot be reached, or it has none");
  if (!hasModel() || !settingsAreFine()) return false;
  const unread = readsPictures() ? 0 : [...path(thread.messages, head), more].flatMap(picturesOf).length;
  if (!unread || thread.blind === chosenModel()) return true;
  const what = unread === 1 ? "the picture" : `the ${unread} pictures`;
  const text = `${whoReads()}. Send it only the ${unread === 1 ? "name" : "names"} of ${what} in this conversation?`;
  if (!(await question({ text, yes: "Send without " + what }))) return false;
  // Asked once for a conversation and a model.
  thread.blind = chosenModel();
  return true;
}

function ask(thread, parent, message) {
  blame(null);
  if (thread.conversation.model !== chosenModel()) change(thread, { model: chosenModel() });
  return answer(thread, { parent, message, model: chosenModel(), settings: thread.conversation.settings });
}

async function send(text) {
  const { thread } = shown;
  const files = attached();
  const more = files.length ? { attachments: files } : {};
  if (thread.run || (!text.trim() && !files.length) || !(await mayAsk(thread, thread.head, more))) return;
  prompt.value = "";
  typed();
  clearFiles();
  thread.conversation.model = chosenModel();
  const message = append(thread, thread.head, { role: "user", content: text.trim(), ...more });
  await ask(thread, message.id);
}

const actions = {
  send,
  async edit(message, content) {
    const { thread } = shown;
    const more = message.attachments ? { attachments: message.attachments } : {};
    if (!(await mayAsk(thread, message.parent, more))) return;
    await stopped(thread);
    const edited = append(thread, message.parent, { role: "user", content, ...more });
    await ask(thread, edited.id);
  },
  async again(message) {
    const { thread } = shown;
    if (!(await mayAsk(thread, message.parent))) return;
    await stopped(thread);
    await ask(thread, message.parent);
  },
  async goOn(message) {
    const { thread } = shown;
    if (!(await mayAsk(thread, message.parent))) return;
    await stopped(thread);
    await ask(thread, message.parent, thread.messages.get(message.id));
  },
  async results(parent, results) {
    const { thread } = shown;
    if (!(await mayAsk(thread, parent))) return;
    await stopped(thread);
    const message = append(thread, parent, { role: "tool", results });
    await ask(thread, message.id);
  },
  // An answer on another branch continues.
  choose: (message) => chooseBranch(shown.thread, message),
};

// ---- the message field ----

function ready() {
  const isBusy = Boolean(shown.thread.run);
  $("send").disabled = !hasModel() || (!prompt.value.trim() && !attached().length);
  $("send").hidden = isBusy;
  $("stop").hidden = !isBusy;
}

const HINT = $("hint").textContent;

/** Says what the chosen model does with a text. */
function showKind() {
  const isText = continuesTexts();
  prompt.placeholder = isText ? "Write a text to continue" : "Write a message";
  const id = chosenModel();
  $("hint").textContent = isText ? `${id} is a base model: it continues each text by itself, and does not chat.` : HINT;
}

function typed() {
  kept.set(sessionStorage, "drafts", { ...kept.get(sessionStorage, "drafts", {}), [draftId()]: prompt.value || undefined });
  fit(prompt);
  ready();
}

/** Shows the draft of the shown conversation. */
function showDraft() {
  prompt.value = kept.get(sessionStorage, "drafts", {})[draftId()] ?? "";
  fit(prompt);
  ready();
}

function startComposer() {
  prompt.enterKeyHint = isTouch() ? "enter" : "send";
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
    if (!sends(event)) return;
    event.preventDefault();
    send(prompt.value);
  });
  $("stop").addEventListener("click", () => {
    stop(shown.thread);
    prompt.focus();
  });
}

/** The request of the field and the conversation, as a shell command. */
async function copyCurl() {
  if (!settingsAreFine()) return;
  const { thread } = shown;
  const draft = prompt.value.trim();
  let list = shownPath();
  while (!draft && list.at(-1)?.role === "assistant") list = list.slice(0, -1);
  const words = draft || (list.length ? "" : "Name three rivers.");
  if (words || attached().length) list = [...list, { role: "user", content: words, attachments: attached() }];
  if (readsPictures()) list = await inlined(list);
  const about = { model: chosenModel(), list, settings: thread.conversation.settings, isText: continuesTexts() };
  copy(curl(requestBody(about)), "Copied as a curl line");
}

// ---- the rest of the page ----

function showTitle() {
  const { title } = shown.thread.conversation;
  $("title").textContent = title;
  document.title = title ? title + " · Penstock" : "Penstock";
}

/** Says what the browser did not store, as long as that lasts. */
function showUnkept() {
  const threads = unkept();
  $("unkept").hidden = !threads.length;
  if (!threads.length) return;
  const names = threads.map((thread) => `“${thread.conversation.title}”`).join(", ");
  $("unkept-text").textContent = `The browser does not keep ${names}, which is lost when this tab closes: ${threads[0].fault.message}`;
}

async function downloadUnkept() {
  const whole = ({ conversation, messages }) => ({ ...conversation, messages: [...messages.values()] });
  download("penstock-chats.json", await fileOf(unkept().map(whole)));
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
  startGallery();
  startKeys();
  startManager();
  $("curl").addEventListener("click", () => copyCurl().catch((error) => toast(error.message)));
  on("thread", () => {
    showTitle();
    showDraft();
    chooseModel(shown.thread.conversation.model);
  });
  on("title", showTitle);
  on("messages", showTitle);
  on("models", (how) => {
    ready();
    showKind();
    if (how === "chosen") change(shown.thread, { model: chosenModel() });
  });
  on("running", () => {
    $("said").textContent = "Generating";
    ready();
  });
  on("ended", ended);
  on("kept", showUnkept);
  $("unkept-save").addEventListener("click", () => downloadUnkept().catch((error) => toast(error.message)));
  const id = kept.get(sessionStorage, "shown");
  if (!id || !(await showStored(id))) showNew();
  await Promise.all([startSidebar(), startModels()]);
  if (!storage.keeps) toast("This browser keeps no data: conversations are lost when the tab closes");
  if (matchMedia("(pointer: fine)").matches && document.activeElement === document.body) prompt.focus();
}

start();
