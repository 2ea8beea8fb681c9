// The conversations that this tab holds: the one it shows, and those with an answer in progress.

import { emit } from "./bus.js";
import { kept, newId, stamp } from "./kept.js";
import * as store from "./store.js";
import { children, leaf, path } from "./tree.js";

// thread: {conversation, messages: Map, head, run, isNew}
const threads = new Map();
export const shown = { thread: null };

function draft() {
  const settings = kept.get(localStorage, "draft", kept.get(localStorage, "defaults", {}));
  const conversation = { id: newId(), title: "", named: false, created: stamp(), updated: 0, head: null, model: null, settings };
  return { conversation, messages: new Map(), head: null, run: null, isNew: true };
}

function show(thread) {
  const before = shown.thread;
  if (before && !before.run && before !== thread) threads.delete(before.conversation.id);
  shown.thread = thread;
  threads.set(thread.conversation.id, thread);
  kept.set(sessionStorage, "shown", thread.isNew ? null : thread.conversation.id);
  emit("thread");
}

export function showNew() {
  show(draft());
}

/** Shows a conversation. False: there is none with this id. */
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
  show({ conversation, messages, head, run: null, isNew: false });
  claim(shown.thread);
  return true;
}

// Which streaming messages another tab says it writes.
const claimed = new Set();

/** An answer that no tab writes was interrupted: its tab was reloaded or closed. */
async function claim(thread) {
  const open = [...thread.messages.values()].filter((message) => message.state === "streaming" && thread.run?.message !== message);
  if (!open.length) return;
  store.tell({ kind: "who", messages: open.map((message) => message.id) });
  await new Promise((resolve) => setTimeout(resolve, 400));
  const lost = open.filter((message) => !claimed.has(message.id) && thread.messages.get(message.id)?.state === "streaming");
  for (const message of lost) message.state = "interrupted";
  if (lost.length) {
    await keep(thread, lost);
    emit("messages", thread);
  }
}

function titleOf(text) {
  const line = text.trim().split("\n")[0].replace(/\s+/g, " ");
  return line.length > 60 ? line.slice(0, 59).trimEnd() + "…" : line;
}

/** Keeps messages of a thread, and the thread with its first one. */
export async function keep(thread, messages, patch = {}) {
  Object.assign(thread.conversation, patch);
  try {
    if (thread.isNew) {
      thread.isNew = false;
      await store.add([{ conversation: thread.conversation, messages: [...thread.messages.values()] }]);
      if (shown.thread === thread) kept.set(sessionStorage, "shown", thread.conversation.id);
      kept.set(localStorage, "draft", null);
    } else {
      await store.save(thread.conversation.id, messages, patch);
    }
  } catch (error) {
    emit("unkept", error);
  }
}

/** Adds a message below `parent` and makes it the end of what is shown. */
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

export function siblings(thread, message) {
  return children(thread.messages, message.parent);
}

/** Shows the branch through a message. */
export function chooseBranch(thread, message) {
  thread.head = leaf(thread.messages, message.id);
  keep(thread, [], { head: thread.head });
  emit("messages", thread);
}

export function change(thread, patch) {
  if (!thread.isNew) return keep(thread, [], patch);
  Object.assign(thread.conversation, patch);
  if (patch.settings) kept.set(localStorage, "draft", patch.settings);
}

export async function rename(id, title) {
  const thread = threads.get(id);
  if (thread) Object.assign(thread.conversation, { title, named: true });
  await store.save(id, [], { title, named: true });
  emit("list");
  emit("title");
}

export async function remove(id) {
  await store.remove(id);
  forget(id);
}

function forget(id) {
  threads.get(id)?.run?.controller.abort();
  threads.delete(id);
  if (shown.thread?.conversation.id === id) showNew();
  emit("list");
}

/** Takes over what another tab has kept. What this tab writes itself stays its own. */
async function takeOver({ conversation: id, messages, patch }) {
  const thread = threads.get(id);
  emit("list");
  if (!thread) return;
  const { head: theirs, settings, ...fields } = patch;
  Object.assign(thread.conversation, fields, settings ? { settings } : {});
  const before = thread.head;
  for (const message of await store.messages(messages)) {
    if (message && thread.run?.message.id !== message.id) thread.messages.set(message.id, message);
  }
  // follows the other tab as long as both look at the same branch
  if (theirs && !thread.run && path(thread.messages, theirs).some((message) => message.id === before)) thread.head = theirs;
  emit("messages", thread);
  if (fields.title) emit("title");
  if (settings && thread === shown.thread) emit("settings");
}

store.onChange((change) => {
  const mine = () => [...threads.values()].map((thread) => thread.run?.message.id);
  if (change.kind === "saved") takeOver(change);
  else if (change.kind === "removed") forget(change.conversation);
  else if (change.kind === "list") emit("list");
  else if (change.kind === "mine") change.messages.forEach((id) => claimed.add(id));
  else if (change.kind === "who") {
    const messages = mine().filter((id) => change.messages.includes(id));
    if (messages.length) store.tell({ kind: "mine", messages });
  }
});
