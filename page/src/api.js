// The server's API: its models, and the events of an answer.

import { kept } from "./kept.js";

export const address = (path) => new URL(path, document.baseURI);

/** The API key, which the page forgets when its tab closes. */
export const key = {
  get: () => kept.get(sessionStorage, "key", ""),
  set: (value) => kept.set(sessionStorage, "key", value.trim()),
};

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
  return new Refused(body?.error, response);
}

export async function models() {
  const response = await fetch(address("v1/models"), { headers: headers() });
  if (!response.ok) throw await refusal(response);
  return (await response.json()).data;
}

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

/** Yields the data of each server-sent event with its time of arrival. Awaits `ready()` before it looks for further data. */
async function* events(body, ready) {
  const incoming = new Incoming(body);
  const decoder = new TextDecoder();
  let rest = "";
  try {
    while (!incoming.isOver || incoming.parts.length) {
      await incoming.some();
      for (const { bytes, at } of incoming.parts.splice(0)) {
        const lines = (rest + decoder.decode(bytes, { stream: true })).split(/\r?\n/);
        rest = lines.pop();
        for (const line of lines) if (line.startsWith("data:")) yield { data: line.slice(5).trimStart(), at };
      }
      await Promise.race([ready(), incoming.ended]);
    }
    if (incoming.error) throw incoming.error;
  } finally {
    incoming.isLeft = true;
  }
}

/** Sends a request and yields the chunks of its answer, each with its time of arrival. Chunks are taken when `ready()` has resolved. A
 * stream that ends early is an error. */
export async function* complete(body, signal, ready) {
  const response = await fetch(address("v1/chat/completions"), {
    method: "POST", headers: headers({ "content-type": "application/json" }), body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw await refusal(response);
  for await (const { data, at } of events(response.body, ready)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refused(chunk.error, response);
    yield { chunk, at };
  }
  throw new Error("the connection ended before the answer did");
}
