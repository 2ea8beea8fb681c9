// The server's API: its models, and the events of an answer.

import { kept } from "./kept.js";

export const address = (path) => new URL(path, document.baseURI);

/** The API key, which the page forgets when its tab closes. */
export const key = {
  get: () => kept.get(sessionStorage, "key", ""),
  set: (value) => kept.set(sessionStorage, "key", value.trim()),
};

/** The endpoint for a request: a prompt is continued, and messages are answered. */
export const pathOf = (body) => (body.prompt === undefined ? "v1/chat/completions" : "v1/completions");

function headers(more = {}) {
  return { ...more, ...(key.get() ? { authorization: "Bearer " + key.get() } : {}) };
}

/** An error with which the server answered. */
export class Refused extends Error {
  constructor(error, response) {
    super(error?.message || "the server answered with status " + response.status);
    this.param = error?.param;
    this.status = response.status;
    this.small = [response.status, error?.code, response.headers.get("x-request-id")].filter(Boolean).join(" · ");
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  // In Ollama's dialect, an error is a text.
  return new Refused(typeof body?.error === "string" ? { message: body.error } : body?.error, response);
}

function send(method, path, body, signal) {
  const type = body ? { "content-type": "application/json" } : {};
  return fetch(address(path), { method, headers: headers(type), body: body && JSON.stringify(body), signal });
}

/** Sends a request and returns the JSON of its answer, or null if there is none. */
export async function call(method, path, body) {
  const response = await send(method, path, body);
  if (!response.ok) throw await refusal(response);
  return response.json().catch(() => null);
}

export const models = async () => (await call("GET", "v1/models")).data;

/** Reads a body as it arrives, and records when. `parts`: {bytes, at} of the data that was not taken yet. */
class Incoming {
  constructor(body) {
    Object.assign(this, { parts: [], isOver: false, isLeft: false, error: null, wake: () => {} });
    this.ended = this.read(body.getReader());
  }

  async read(reader) {
    try {
      while (!this.isLeft) {
        const { value, done } = await reader.read();
        if (done) break;
        this.parts.push({ bytes: value, at: performance.now() });
        this.wake();
      }
    } catch (error) {
      this.error = error;
    }
    this.isOver = true;
    this.wake();
  }

  /** Resolves once there is data to take, or once no more will arrive. */
  async some() {
    if (!this.parts.length && !this.isOver) await new Promise((resolve) => (this.wake = resolve));
  }
}

/** Yields each complete line with its time of arrival. Awaits `ready()` before it looks for further data. */
async function* lines(body, ready) {
  const incoming = new Incoming(body);
  const decoder = new TextDecoder();
  let rest = "";
  try {
    while (!incoming.isOver || incoming.parts.length) {
      await incoming.some();
      for (const { bytes, at } of incoming.parts.splice(0)) {
        const complete = (rest + decoder.decode(bytes, { stream: true })).split(/\r?\n/);
        rest = complete.pop();
        for (const line of complete) yield { line, at };
      }
      await Promise.race([ready(), incoming.ended]);
    }
    if (incoming.error) throw incoming.error;
  } finally {
    incoming.isLeft = true;
  }
}

/** Fetches a model to the server's disk and yields the progress: {total, completed} [bytes]. If the signal ends it, the next one continues
 * it. */
export async function* pull(model, signal) {
  const response = await send("POST", "api/pull", { model }, signal);
  if (!response.ok) throw await refusal(response);
  for await (const { line } of lines(response.body, () => {})) {
    const progress = line ? JSON.parse(line) : {};
    if (progress.error) throw new Refused({ message: progress.error }, response);
    if (progress.status === "success") return;
    yield progress;
  }
  throw new Error("the connection ended before the download did");
}

/** Sends a request and yields the chunks of its answer, each with its time of arrival. Chunks are taken when `ready()` has resolved. A
 * stream that ends early is an error. */
export async function* complete(body, signal, ready) {
  const response = await send("POST", pathOf(body), body, signal);
  if (!response.ok) throw await refusal(response);
  for await (const { line, at } of lines(response.body, ready)) {
    if (!line.startsWith("data:")) continue;
    const data = line.slice(5).trimStart();
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refused(chunk.error, response);
    yield { chunk, at };
  }
  throw new Error("the connection ended before the answer did");
}
