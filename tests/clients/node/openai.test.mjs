// The official Node SDK against the real binary. PENSTOCK_URL names a running server, otherwise one is started.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createServer } from "node:net";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import OpenAI from "openai";

const model = "smollm2:135m";
const answer = "The capital of France is Paris.";
const ask = { model, messages: [{ role: "user", content: "What is the capital of France?" }], max_tokens: 12, temperature: 0 };
let client, child;

async function freePort() {
  const probe = createServer();
  await new Promise((done) => probe.listen(0, "127.0.0.1", done));
  const { port } = probe.address();
  await new Promise((done) => probe.close(done));
  return port;
}

async function start() {
  const binary = process.env.PENSTOCK_BINARY ?? fileURLToPath(new URL("../../../target/release/penstock", import.meta.url));
  const port = await freePort();
  child = spawn(binary, ["serve", "--port", String(port)], {
    stdio: "ignore",
    env: { ...process.env, PENSTOCK__SERVER__DEFAULT_MODELS: model },
  });
  const url = `http://127.0.0.1:${port}`;
  for (let tries = 0; tries < 1200; tries++) {
    assert.equal(child.exitCode, null, "serve ended before it was ready");
    const ready = await fetch(`${url}/ready`).catch(() => null);
    if (ready?.status === 200) return url;
    await new Promise((done) => setTimeout(done, 100));
  }
  throw new Error("not ready");
}

before(async () => {
  const url = process.env.PENSTOCK_URL ?? (await start());
  client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "not-needed", maxRetries: 0, timeout: 60_000 });
});

after(async () => {
  if (!child) return;
  const ended = new Promise((done) => child.on("exit", done));
  child.kill("SIGTERM");
  assert.equal(await ended, 0, "SIGTERM ends the server cleanly");
});

test("chat", async () => {
  const completion = await client.chat.completions.create(ask);
  assert.equal(completion.object, "chat.completion");
  assert.equal(completion.model, model);
  assert.equal(completion.choices.length, 1);
  assert.deepEqual([completion.choices[0].message.role, completion.choices[0].message.content], ["assistant", answer]);
  assert.equal(completion.choices[0].finish_reason, "stop");
  assert.equal(completion.usage.prompt_tokens, 37);
  assert.equal(completion.usage.total_tokens, completion.usage.prompt_tokens + completion.usage.completion_tokens);
  assert.ok(completion._request_id);
});

test("streaming with usage", async () => {
  const chunks = [];
  for await (const chunk of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) chunks.push(chunk);
  assert.deepEqual(chunks[0].choices[0].delta, { role: "assistant", content: "" });
  const last = chunks.pop();
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.prompt_tokens, 37);
  assert.ok(chunks.every((chunk) => chunk.usage === null && chunk.id === last.id && chunk.created === last.created));
  assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), answer);
  assert.deepEqual(chunks.map((chunk) => chunk.choices[0].finish_reason).filter(Boolean), ["stop"]);
});

test("the SDK's own accumulator", async () => {
  const completion = await client.chat.completions.stream(ask).finalChatCompletion();
  assert.equal(completion.choices[0].message.content, answer);
});

test("completions", async () => {
  const completion = await client.completions.create({ model, prompt: ["The capital of France is", "Once upon a time"], max_tokens: 6, temperature: 0 });
  assert.deepEqual(completion.choices.map((choice) => choice.index), [0, 1]);
  assert.match(completion.choices[0].text, /Paris/);
  const ids = await client.completions.create({ model, prompt: [504, 3575, 282, 4649, 314], max_tokens: 6, temperature: 0 });
  assert.equal(ids.choices[0].text, completion.choices[0].text);
});

test("errors", async () => {
  await assert.rejects(client.chat.completions.create({ ...ask, model: "nope" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.deepEqual([error.status, error.code, error.param, error.type], [404, "model_not_found", "model", "invalid_request_error"]);
    return true;
  });
  await assert.rejects(client.chat.completions.create({ ...ask, messages: [{ role: "user", content: "hello ".repeat(9000) }] }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.deepEqual([error.code, error.param], ["context_length_exceeded", "messages"]);
    assert.match(error.message, /context_length_exceeded/);
    return true;
  });
  await assert.rejects(client.chat.completions.create({ ...ask, temperature: -1 }), (error) => error.status === 400 && error.param === "temperature");
});

test("models", async () => {
  const ids = [];
  for await (const entry of client.models.list()) ids.push(entry.id);
  assert.ok(ids.includes(model));
  assert.equal((await client.models.retrieve(model)).id, model);
  await assert.rejects(client.models.retrieve("meta-llama/Llama"), (error) => error.code === "model_not_found");
});

test("stop strings and seeds", async () => {
  const stopped = await client.chat.completions.create({ ...ask, stop: [" Paris"] });
  assert.equal(stopped.choices[0].message.content, "The capital of France is");
  const seeded = { ...ask, temperature: 1, seed: 3, messages: [{ role: "user", content: "Tell me a story." }] };
  const [one, two] = [await client.chat.completions.create(seeded), await client.chat.completions.create(seeded)];
  assert.equal(one.choices[0].message.content, two.choices[0].message.content);
});

test("abort in mid-stream, then on as before", async () => {
  const stream = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 1500, ignore_eos: true, stream: true });
  let seen = 0;
  for await (const _ of stream) if (++seen === 3) break;
  stream.controller.abort();
  assert.equal((await client.chat.completions.create(ask)).choices[0].message.content, answer);
});

test("twenty at once", async () => {
  const all = await Promise.all(Array.from({ length: 20 }, () => client.chat.completions.create(ask)));
  assert.deepEqual([...new Set(all.map((completion) => completion.choices[0].message.content))], [answer]);
});
