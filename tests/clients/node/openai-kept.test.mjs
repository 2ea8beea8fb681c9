// Tests what the official Node SDK stores on the server: files, batches, conversations, background responses and chat completions.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI, { toFile } from "openai";
import { model, withServer } from "./server.mjs";

let client;

withServer((url) => {
  client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "not-needed", maxRetries: 0, timeout: 60_000 });
});

async function poll(get, ended) {
  for (let tries = 0; tries < 600; tries++) {
    const thing = await get();
    if (ended.includes(thing.status)) return thing;
    await new Promise((done) => setTimeout(done, 100));
  }
  throw new Error("it did not end");
}

test("a batch goes from a file to a file", async () => {
  const line = (id) => ({
    custom_id: id,
    method: "POST",
    url: "/v1/chat/completions",
    body: { model, messages: [{ role: "user", content: `Say ${id}.` }], max_tokens: 4 },
  });
  const content = ["one", "two"].map((id) => JSON.stringify(line(id))).join("\n");
  const file = await client.files.create({ file: await toFile(Buffer.from(content), "in.jsonl"), purpose: "batch" });
  assert.equal(await (await client.files.content(file.id)).text(), content);
  const made = await client.batches.create({ input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h" });
  const batch = await poll(() => client.batches.retrieve(made.id), ["completed", "failed"]);
  assert.deepEqual([batch.status, batch.request_counts.completed], ["completed", 2]);
  const out = (await (await client.files.content(batch.output_file_id)).text()).trim().split("\n").map(JSON.parse);
  assert.deepEqual(out.map((line) => line.custom_id).sort(), ["one", "two"]);
  const ids = [];
  for await (const one of client.batches.list({ limit: 1 })) ids.push(one.id);
  assert.ok(ids.includes(made.id));
  assert.equal((await client.files.delete(file.id)).deleted, true);
});

test("a response runs in the background and belongs to a conversation", async () => {
  const conversation = await client.conversations.create({ items: [{ type: "message", role: "user", content: "I am Zork." }] });
  const ask = { model, conversation: conversation.id, input: "Who am I?", max_output_tokens: 8, background: true };
  const queued = await client.responses.create(ask);
  assert.equal(queued.status, "queued");
  const done = await poll(() => client.responses.retrieve(queued.id), ["completed", "incomplete", "failed"]);
  assert.notEqual(done.status, "failed");
  const roles = [];
  for await (const item of client.conversations.items.list(conversation.id, { order: "asc" })) roles.push(item.role);
  assert.deepEqual(roles, ["user", "user", "assistant"]);
  assert.equal((await client.conversations.delete(conversation.id)).deleted, true);
});

test("a chat is stored", async () => {
  const messages = [{ role: "user", content: "Say one." }];
  const made = await client.chat.completions.create({ model, messages, max_tokens: 4, store: true, metadata: { kind: "x" } });
  const found = await client.chat.completions.retrieve(made.id);
  assert.equal(found.choices[0].message.content, made.choices[0].message.content);
  const ids = [];
  for await (const chat of client.chat.completions.list({ metadata: { kind: "x" } })) ids.push(chat.id);
  assert.deepEqual(ids, [made.id]);
  assert.equal((await client.chat.completions.delete(made.id)).deleted, true);
});
