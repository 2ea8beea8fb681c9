// The conversations of this tab: the shown one, and those with an answer in progress.

import { emit } from "./bus.js";
import { kept, newId, stamp } from "./kept.js";
import { areStored, unstoredRows } from "./pictures.js";
import * as store from "./store.js";
import { leaf, path } from "./tree.js";
import { whoWrites } from "./writers.js";

// thread: {conversation, messages: Map, head, run, isNew, pending: {messages: Set, patch}, writing, fault}
// blind: the model to which the user sends this conversation without its pictures.
// isNew: not stored yet. pending: the parts that are not stored yet. fault: the error of the last attempt to store it.
const threads = new Map();
export const shown = { thread: null };

function draft() {
  const settings = kept.get(localStorage, "draft", kept.get(localStorage, "defaults", {}));
  const conversation = { id: newId(), title: "", named: false, created: stamp(), updated: 0, head: null, model: null, settings };
  return threadOf(conversation, new Map(), null, true);
}

function threadOf(conversation, messages, head, isNew) {
  const pending = { messages: new Set(), patch: {} };
  return { conversation, messages, head, run: null, isNew, pending, writing: Promise.resolve(), fault: null };
}

const isPending = ({ pending }) => pending.messages.size > 0 || Object.keys(pending.patch).length > 0;

/** The threads that the browser has refused to store. */
export const unkept = () => [...threads.values()].filter((thread) => thread.fault);

/** The conversation to which a draft belongs. All new chats share one. */
export const draftId = ({ conversation, messages } = shown.thread) => (messages.size ? conversation.id : "new");

function show(thread) {
  const before = shown.thread;
  if (before && !before.run && before !== thread && !isPending(before)) threads.delete(before.conversation.id);
  shown.thread = thread;
  threads.set(thread.conversation.id, thread);
  kept.set(sessionStorage, "shown", thread.isNew ? null : thread.conversation.id);
  emit("thread");
  watch(thread);
}

export function showNew() {
  show(draft());
}

/** Shows a conversation. Returns false if none has this id. */
export async function showStored(id) {
  const known = threads.get(id);
  if (known) {
    show(known);
    return true;
  }
  const [conversation, list] = await Promise.all([store.conversation(id), store.messagesOf(id)]);
  if (!conversation) return false;
  const messages = new Map(list.map((message) => [message.id, message]));
  const head = messages.has(conversation.head) ? conversation.head : leaf(messages, null);
  show(threadOf(conversation, messages, head, false));
  return true;
}

/** How often a tab checks that the answers written by other tabs are still being written [ms]. */
const WATCH_EVERY = 2000;

/** Watches the answers of a shown thread that other tabs write. An answer that no tab writes was interrupted: its tab was reloaded or
 * closed. */
async function watch(thread) {
  const open = () => [...thread.messages.values()].filter((message) => message.state === "streaming" && thread.run?.message !== message);
  if (thread.isWatched) return;
  thread.isWatched = true;
  while (shown.thread === thread && open().length) {
    const asked = new Set(open().map((message) => message.id));
    const written = await whoWrites([...asked]);
    const lost = open().filter(({ id }) => asked.has(id) && !written.has(id));
    for (const message of lost) message.state = "interrupted";
    if (lost.length) {
      await keep(thread, lost);
      emit("messages", thread);
    }
    if (open().length) await new Promise((resolve) => setTimeout(resolve, WATCH_EVERY));
  }
  thread.isWatched = false;
}

function titleOf(text) {
  const line = text.trim().split("\n")[0].replace(/\s+/g, " ");
  return line.length > 60 ? line.slice(0, 59).trimEnd() + "…" : line;
}

/** Stores messages of a thread, and the thread itself with its first message. What the browser refuses is stored with the next attempt. */
export function keep(thread, messages, patch = {}) {
  Object.assign(thread.conversation, patch);
  Object.assign(thread.pending.patch, patch);
  for (const message of messages) thread.pending.messages.add(message);
  // One write after the other.
  thread.writing = thread.writing.then(() => write(thread));
  return thread.writing;
}

/** How long after a refusal the browser is asked again to store a thread [ms]. */
const RETRY_AFTER = 5000;

async function write(thread) {
  // An earlier write has included it, or the conversation was deleted.
  if (!isPending(thread) || thread.isGone) return;
  const { messages, patch } = thread.pending;
  thread.pending = { messages: new Set(), patch: {} };
  const before = thread.fault;
  try {
    const list = thread.isNew ? [...thread.messages.values()] : [...messages];
    const pictures = unstoredRows(thread.conversation.id, list);
    if (thread.isNew) await begin(thread, list, pictures);
    else await store.save(thread.conversation.id, list, patch, pictures);
    areStored(list);
    thread.fault = null;
  } catch (error) {
    thread.pending = { messages: new Set([...messages, ...thread.pending.messages]), patch: { ...patch, ...thread.pending.patch } };
    thread.fault = error;
    clearTimeout(thread.timer);
    thread.timer = setTimeout(() => keep(thread, []), RETRY_AFTER);
  }
  if (before !== thread.fault) emit("kept");
}

/** Stores a new thread with all its messages. */
async function begin(thread, messages, pictures) {
  await store.add([{ conversation: thread.conversation, messages, pictures }]);
  thread.isNew = false;
  if (shown.thread === thread) kept.set(sessionStorage, "shown", thread.conversation.id);
  kept.set(localStorage, "draft", null);
  store.persist();
}

/** Adds a message below `parent` and makes it the end of the shown branch. */
export function append(thread, parent, fields) {
  const message = { id: newId(), conversation: thread.conversation.id, parent, created: stamp(), state: "done", content: "", ...fields };
  thread.messages.set(message.id, message);
  thread.head = message.id;
  const patch = { head: message.id, updated: stamp() };
  if (!thread.conversation.title && fields.role === "user") {
    patch.title = titleOf(fields.content || fields.attachments?.[0]?.name || "") || "Chat";
  }
  keep(thread, [message], patch).then(() => emit("list"));
  emit("messages", thread);
  return message;
}

export function shownPath(thread = shown.thread) {
  return path(thread.messages, thread.head);
}

/** Shows the branch through a message. */
export function chooseBranch(thread, message) {
  thread.head = leaf(thread.messages, message.id);
  keep(thread, [], { head: thread.head });
  emit("messages", thread);
}

export function change(thread, patch) {
  if (thread.messages.size) return keep(thread, [], patch);
  Object.assign(thread.conversation, patch);
  if (patch.settings) kept.set(localStorage, "draft", patch.settings);
}

/** Throws an error if the browser does not store the name. */
export async function rename(id, title) {
  const patch = { title, named: true };
  const thread = threads.get(id);
  if (thread) await keep(thread, [], patch);
  else if (!(await store.save(id, [], patch))) throw new Error("this conversation was deleted");
  emit("list");
  emit("title");
}

/** Throws an error if the browser does not remove it. */
export async function remove(id) {
  await store.remove(id);
  forget(id);
}

function forget(id) {
  const thread = threads.get(id);
  if (thread) thread.isGone = true;
  thread?.run?.controller.abort();
  clearTimeout(thread?.timer);
  threads.delete(id);
  emit("kept");
  if (shown.thread?.conversation.id === id) showNew();
  emit("list");
}

/** Takes over what another tab has stored. What this tab writes itself is not replaced. */
async function takeOver({ conversation: id, messages, patch }) {
  const thread = threads.get(id);
  // The pieces of an answer change nothing in the list.
  if (Object.keys(patch).length) emit("list");
  if (!thread) return;
  const { head: theirs, settings, ...fields } = patch;
  Object.assign(thread.conversation, fields, settings ? { settings } : {});
  const before = thread.head;
  for (const message of await store.messages(messages)) {
    if (message && thread.run?.message.id !== message.id) thread.messages.set(message.id, message);
  }
  // Follows the other tab as long as both show the same branch.
  if (theirs && !thread.run && path(thread.messages, theirs).some((message) => message.id === before)) thread.head = theirs;
  emit("messages", thread);
  watch(thread);
  if (fields.title) emit("title");
  if (settings && thread === shown.thread) emit("settings");
}

store.onChange((change) => {
  if (change.kind === "saved") takeOver(change);
  else if (change.kind === "removed") forget(change.conversation);
  else if (change.kind === "list") emit("list");
});
