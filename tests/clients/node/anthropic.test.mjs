// Tests Anthropic's Node SDK against the real binary.
import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { coder, model, withServer } from "./server.mjs";

const answer = "The capital of France is Paris.";
const messages = [{ role: "user", content: "What is the capital of France?" }];
const ask = { model, messages, max_tokens: 12, temperature: 0 };
const get_weather = {
  name: "get_weather",
  description: "The weather in a city.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
let client;

withServer((url) => {
  client = new Anthropic({ baseURL: url, apiKey: "not-needed", maxRetries: 0, timeout: 60_000 });
});

test("a message is answered", async () => {
  const message = await client.messages.create(ask);
  assert.deepEqual([message.type, message.role, message.model, message.stop_reason], ["message", "assistant", model, "end_turn"]);
  assert.deepEqual(message.content, [{ type: "text", text: answer }]);
  assert.equal(message.usage.input_tokens + message.usage.cache_read_input_tokens, 37);
  assert.equal(message.usage.output_tokens, 7);
  assert.ok(message._request_id);
});

test("a message is streamed", async () => {
  const texts = [];
  const stream = client.messages.stream(ask).on("text", (text) => texts.push(text));
  const final = await stream.finalMessage();
  assert.ok(texts.length > 3);
  assert.deepEqual([texts.join(""), final.content[0].text, final.stop_reason], [answer, answer, "end_turn"]);
  const events = [];
  for await (const event of await client.messages.create({ ...ask, stream: true })) events.push(event.type);
  assert.deepEqual([events[0], events[1], events.at(-2), events.at(-1)], [
    "message_start",
    "content_block_start",
    "message_delta",
    "message_stop",
  ]);
});

test("a stop sequence is told", async () => {
  const message = await client.messages.create({ ...ask, stop_sequences: [" Paris"] });
  assert.deepEqual([message.stop_reason, message.stop_sequence], ["stop_sequence", " Paris"]);
});

test("a tool is called and its result answered", async () => {
  const wanted = { model: coder, max_tokens: 80, temperature: 0, tools: [get_weather] };
  const question = { role: "user", content: "What is the weather in Paris?" };
  const first = await client.messages.stream({ ...wanted, messages: [question], tool_choice: { type: "any" } }).finalMessage();
  assert.equal(first.stop_reason, "tool_use");
  const call = first.content.find((block) => block.type === "tool_use");
  assert.deepEqual([call.name, call.input], ["get_weather", { city: "Paris" }]);
  const results = first.content
    .filter((block) => block.type === "tool_use")
    .map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: "In Paris it is sunny, 24 degrees." }));
  const turns = [question, { role: "assistant", content: first.content }, { role: "user", content: results }];
  const second = await client.messages.create({ ...wanted, messages: turns });
  assert.equal(second.stop_reason, "end_turn");
  assert.match(second.content[0].text, /24/);
});

test("tokens are counted and the models listed", async () => {
  assert.equal((await client.messages.countTokens({ model, messages })).input_tokens, 37);
  const ids = [];
  for await (const one of client.models.list({ limit: 1 })) ids.push(one.id);
  assert.ok(ids.includes(model) && ids.includes(coder));
  assert.equal((await client.models.retrieve(model)).display_name, model);
});

test("each error has its class", async () => {
  await assert.rejects(client.messages.create({ ...ask, model: "nope" }), (error) => {
    assert.ok(error instanceof Anthropic.NotFoundError && error.requestID);
    assert.equal(error.error.error.type, "not_found_error");
    return true;
  });
  await assert.rejects(client.messages.create({ ...ask, max_tokens: 0 }), Anthropic.BadRequestError);
  await assert.rejects(client.messages.create({ ...ask, tempreature: 1 }), /did you mean `temperature`/);
});
