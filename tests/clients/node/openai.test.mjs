// Tests the official Node SDK against the real binary.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { coder, model, withServer } from "./server.mjs";

const answer = "The capital of France is Paris.";
const ask = { model, messages: [{ role: "user", content: "What is the capital of France?" }], max_tokens: 12, temperature: 0 };
let client;

withServer((url) => {
  client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "not-needed", maxRetries: 0, timeout: 60_000 });
});

test("a chat is answered", async () => {
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

test("a chat is streamed with usage", async () => {
  const chunks = [];
  for await (const chunk of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } }))
    chunks.push(chunk);
  assert.deepEqual(chunks[0].choices[0].delta, { role: "assistant", content: "" });
  const last = chunks.pop();
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.prompt_tokens, 37);
  assert.ok(chunks.every((chunk) => chunk.usage === null && chunk.id === last.id && chunk.created === last.created));
  assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), answer);
  assert.deepEqual(chunks.map((chunk) => chunk.choices[0].finish_reason).filter(Boolean), ["stop"]);
});

test("the accumulator of the SDK works", async () => {
  const completion = await client.chat.completions.stream(ask).finalChatCompletion();
  assert.equal(completion.choices[0].message.content, answer);
});

test("completions are answered", async () => {
  const completion = await client.completions.create({
    model,
    prompt: ["The capital of France is", "Once upon a time"],
    max_tokens: 6,
    temperature: 0,
  });
  assert.deepEqual(
    completion.choices.map((choice) => choice.index),
    [0, 1],
  );
  assert.match(completion.choices[0].text, /Paris/);
  const ids = await client.completions.create({ model, prompt: [504, 3575, 282, 4649, 314], max_tokens: 6, temperature: 0 });
  assert.equal(ids.choices[0].text, completion.choices[0].text);
});

test("errors are those of the SDK", async () => {
  await assert.rejects(client.chat.completions.create({ ...ask, model: "nope" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.deepEqual([error.status, error.code, error.param, error.type], [404, "model_not_found", "model", "invalid_request_error"]);
    return true;
  });
  await assert.rejects(
    client.chat.completions.create({ ...ask, messages: [{ role: "user", content: "hello ".repeat(9000) }] }),
    (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.deepEqual([error.code, error.param], ["context_length_exceeded", "messages"]);
      assert.match(error.message, /context_length_exceeded/);
      return true;
    },
  );
  await assert.rejects(
    client.chat.completions.create({ ...ask, temperature: -1 }),
    (error) => error.status === 400 && error.param === "temperature",
  );
});

test("models are listed and retrieved", async () => {
  const ids = [];
  for await (const entry of client.models.list()) ids.push(entry.id);
  assert.ok(ids.includes(model));
  assert.equal((await client.models.retrieve(model)).id, model);
  await assert.rejects(client.models.retrieve("meta-llama/Llama"), (error) => error.code === "model_not_found");
});

test("stop strings and seeds work", async () => {
  const stopped = await client.chat.completions.create({ ...ask, stop: [" Paris"] });
  assert.equal(stopped.choices[0].message.content, "The capital of France is");
  const seeded = { ...ask, temperature: 1, seed: 3, messages: [{ role: "user", content: "Tell me a story." }] };
  const [one, two] = [await client.chat.completions.create(seeded), await client.chat.completions.create(seeded)];
  assert.equal(one.choices[0].message.content, two.choices[0].message.content);
});

test("closing a stream ends the request", async () => {
  const stream = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 1500, ignore_eos: true, stream: true });
  let seen = 0;
  for await (const _ of stream) if (++seen === 3) break;
  stream.controller.abort();
  assert.equal((await client.chat.completions.create(ask)).choices[0].message.content, answer);
});

test("twenty requests at once are answered", async () => {
  const all = await Promise.all(Array.from({ length: 20 }, () => client.chat.completions.create(ask)));
  assert.deepEqual([...new Set(all.map((completion) => completion.choices[0].message.content))], [answer]);
});

const City = z.object({ name: z.string(), country: z.string() });
const aboutParis = [{ role: "user", content: "Paris is the capital of France. Give the city's name and country as JSON." }];

test("parse gives an object", async () => {
  const wanted = { model: coder, messages: aboutParis, temperature: 0, max_tokens: 60, response_format: zodResponseFormat(City, "city") };
  const completion = await client.chat.completions.parse(wanted);
  assert.deepEqual(completion.choices[0].message.parsed, { name: "Paris", country: "France" });
  const streamed = await client.chat.completions.stream(wanted).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.parsed, { name: "Paris", country: "France" });
});

test("runTools calls the tool and answers", async () => {
  const runner = client.chat.completions.runTools({
    model: coder,
    temperature: 0,
    max_tokens: 120,
    messages: [{ role: "user", content: "What is the weather in Paris?" }],
    tools: [
      zodFunction({
        name: "get_weather",
        description: "The weather in a city.",
        parameters: z.object({ city: z.string() }),
        function: ({ city }) => `In ${city} it is sunny, 24 degrees.`,
      }),
    ],
  });
  await runner.done();
  assert.deepEqual(
    runner.messages.map((message) => message.role),
    ["user", "assistant", "tool", "assistant"],
  );
  assert.equal(runner.messages[2].content, "In Paris it is sunny, 24 degrees.");
  assert.match(runner.messages[3].content, /^[^{]*sunny[^{]*$/);
});
