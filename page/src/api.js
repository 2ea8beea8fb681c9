// The server: its models, and the events of an answer.

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

/** An error that the server answered with. */
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

/** Yields the data of each server-sent event. What is there is read in one go, and what comes later once `ready()` has resolved. */
async function* events(body, ready) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const soon = () => new Promise((resolve) => setTimeout(resolve));
  let rest = "";
  let over = soon();
  for (;;) {
    const read = reader.read();
    if (!(await Promise.race([read, over]))) {
      await Promise.all([read, ready()]);
      over = soon();
    }
    const { value, done } = await read;
    if (done) return;
    const lines = (rest + decoder.decode(value, { stream: true })).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) yield line.slice(5).trimStart();
    }
  }
}

/** Sends a request and yields the chunks of its answer, which is read when `ready()` has resolved. A stream that ends early is an error. */
export async function* complete(body, signal, ready) {
  const response = await fetch(address("v1/chat/completions"), {
    method: "POST", headers: headers({ "content-type": "application/json" }), body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw await refusal(response);
  for await (const data of events(response.body, ready)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refused(chunk.error, response);
    yield chunk;
  }
  throw new Error("the connection ended before the answer did");
}
