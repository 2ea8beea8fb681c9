// Exports conversations to a file, and imports them.

import { newId } from "./kept.js";
import { inlined, newPicture, unstoredRows } from "./pictures.js";
import * as store from "./store.js";
import { leaf } from "./tree.js";

const FORMAT = "penstock-chat";
/** The largest file, below the longest text of browsers [bytes]. */
const MAX_BYTES = 500 << 20;

/** The file of some conversations, or of all if there are no `ids`. */
export async function exported(ids) {
  const wanted = (await store.conversations()).filter((one) => !ids || ids.includes(one.id));
  const conversations = [];
  for (const one of wanted) conversations.push({ ...one, messages: await store.messagesOf(one.id) });
  return fileOf(conversations);
}

/** The file of conversations with their messages and pictures. */
export async function fileOf(conversations) {
  const whole = [];
  for (const one of conversations) whole.push({ ...one, messages: await inlined(one.messages) });
  return JSON.stringify({ format: FORMAT, version: 1, exported: new Date().toISOString(), conversations: whole }, null, 1) + "\n";
}

export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

const text = (value, otherwise = "") => (typeof value === "string" ? value : otherwise);
const time = (value) => (Number.isFinite(value) && value >= 0 ? value : Date.now());
const list = (value, one) => (Array.isArray(value) ? value.filter((item) => item && typeof item === "object").map(one) : undefined);
const ROLES = ["user", "assistant", "tool"];
const STATES = ["done", "stopped", "cut", "failed", "interrupted"];

/** The bytes of a `data:` URL. Throws an error if they are not base64. */
function bytesOf(url) {
  const binary = atob(url.slice(url.indexOf(",") + 1));
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function attachment({ name, text: content, image }, where) {
  if (typeof image !== "string") return { name: text(name, "file"), text: text(content) };
  try {
    return await newPicture(text(name, "picture"), bytesOf(image));
  } catch (error) {
    throw new Error(`${where}.attachments: ${text(name, "picture")}: ${error.message}`);
  }
}

/** A message with the fields and types that the page expects. */
async function message(raw, where) {
  if (!ROLES.includes(raw.role)) throw new Error(`${where}.role is ${JSON.stringify(raw.role)}, expected one of ${ROLES.join(", ")}`);
  if (typeof raw.id !== "string") throw new Error(`${where}.id is missing`);
  const out = { id: raw.id, parent: text(raw.parent, null), role: raw.role, created: time(raw.created), content: text(raw.content) };
  out.state = STATES.includes(raw.state) ? raw.state : raw.state === "streaming" ? "interrupted" : "done";
  for (const name of ["model", "reasoning", "note"]) if (typeof raw[name] === "string") out[name] = raw[name];
  const calls = list(raw.calls, (call) => ({ id: text(call.id), name: text(call.name), arguments: text(call.arguments) }));
  const results = list(raw.results, (one) => ({ id: text(one.id), name: text(one.name), content: text(one.content) }));
  const attachments = await Array.fromAsync(list(raw.attachments, (one) => one) ?? [], (one) => attachment(one, where));
  if (raw.error) out.error = { message: text(raw.error.message), small: text(raw.error.small) };
  if (raw.role === "tool") out.results = results ?? [];
  return Object.assign(out, calls?.length && { calls }, attachments.length && { attachments });
}

/** Settings are stored as texts, as the user typed them. */
const settings = (raw) => Object.fromEntries(Object.entries(raw ?? {}).filter(([, value]) => typeof value === "string"));

/** Reads a conversation written by the terminal's /save: a list of messages, each of which answers the previous one. */
function spoken(raw) {
  const { system, think, sampling, seed, max_tokens, stop } = raw.settings ?? {};
  const effort = think === "off" ? "none" : think === "on" ? null : think;
  const own = { ...sampling, system, seed, max_completion_tokens: max_tokens, reasoning_effort: effort };
  const given = Object.entries(own).filter(([, value]) => ["string", "number"].includes(typeof value));
  const stops = (Array.isArray(stop) ? stop : []).map((one) => String(one).replaceAll("\n", "\\n")).join("\n");
  const now = Date.now();
  const links = (i) => ({ id: String(i), parent: i ? String(i - 1) : null, created: now + i });
  const messages = raw.messages.map((one, i) => ({ role: one?.role, content: one?.content, model: raw.model, ...links(i) }));
  const first = text(raw.messages.find((one) => one?.role === "user")?.content).trim().split("\n")[0].slice(0, 60);
  const settings = { ...Object.fromEntries(given.map(([name, value]) => [name, String(value)])), ...(stops && { stop: stops }) };
  return { title: first, created: now, updated: now, head: String(messages.length - 1), model: raw.model, settings, messages };
}

async function entry(raw, at) {
  const where = `conversations[${at}]`;
  if (!Array.isArray(raw?.messages)) throw new Error(`${where}.messages is missing`);
  const messages = await Array.fromAsync(raw.messages, (one, i) => message(one ?? {}, `${where}.messages[${i}]`));
  const conversation = {
    id: text(raw.id), title: text(raw.title, "Chat").slice(0, 200) || "Chat", named: raw.named === true, created: time(raw.created),
    updated: time(raw.updated), head: text(raw.head, null), model: text(raw.model, null), settings: settings(raw.settings),
  };
  return { conversation, messages };
}

/** Gives everything a new id, so that nothing stored is overwritten. */
function renew({ conversation, messages }) {
  const ids = new Map(messages.map((one) => [one.id, newId()]));
  const id = newId();
  const renewed = messages.map((one) => ({ ...one, id: ids.get(one.id), parent: ids.get(one.parent) ?? null, conversation: id }));
  const byId = new Map(renewed.map((one) => [one.id, one]));
  const head = ids.get(conversation.head) ?? leaf(byId, null);
  return { conversation: { ...conversation, id, head }, messages: renewed, pictures: unstoredRows(id, renewed) };
}

/** Adds the conversations of a file, all or none. Returns their number and the id of the first. */
export async function imported(file) {
  if (file.size > MAX_BYTES) throw new Error(`the file is larger than ${MAX_BYTES >> 20} MiB`);
  let raw;
  try {
    raw = JSON.parse(await file.text());
  } catch (error) {
    throw new Error("the file is not JSON: " + error.message);
  }
  if (raw?.format === FORMAT && Array.isArray(raw.messages)) raw = { ...raw, version: 1, conversations: [spoken(raw)] };
  if (raw?.format !== FORMAT || !Array.isArray(raw.conversations)) throw new Error(`the file is no export of this page (format ${FORMAT})`);
  if (raw.version !== 1) throw new Error(`the file has version ${raw.version}, expected 1`);
  const entries = (await Array.fromAsync(raw.conversations, entry)).map(renew);
  await store.add(entries);
  return { count: entries.length, first: entries[0]?.conversation.id };
}
