// Tests LangChain's ChatOpenAI for Node against the real binary.
import assert from "node:assert/strict";
import { test } from "node:test";
import { AIMessage, HumanMessage, SystemMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { createAgent } from "langchain";
import { z } from "zod";
import { coder, model, withServer } from "./server.mjs";

const question = "What is the capital of France?";
const answer = "The capital of France is Paris.";
let open;

withServer((url) => {
  open = (fields) =>
    new ChatOpenAI({
      configuration: { baseURL: `${url}/v1` },
      apiKey: "none",
      model,
      temperature: 0,
      maxTokens: 12,
      maxRetries: 0,
      ...fields,
    });
});

test("invoke answers", async () => {
  const message = await open().invoke(question);
  assert.ok(AIMessage.isInstance(message));
  assert.equal(message.content, answer);
  assert.deepEqual(
    [message.usage_metadata.input_tokens, message.usage_metadata.output_tokens, message.usage_metadata.total_tokens],
    [37, 7, 44],
  );
  assert.deepEqual([message.response_metadata.finish_reason, message.response_metadata.model_name], ["stop", model]);
});

test("a conversation is answered", async () => {
  const message = await open().invoke([
    new SystemMessage("You answer in one word."),
    new HumanMessage("Hi"),
    new AIMessage("Hello."),
    new HumanMessage(question),
  ]);
  assert.ok(message.content && message.usage_metadata.input_tokens > 37);
});

test("a stream counts usage once", async () => {
  let total;
  for await (const chunk of await open().stream(question)) total = total ? total.concat(chunk) : chunk;
  assert.equal(total.content, answer);
  assert.deepEqual([total.usage_metadata.input_tokens, total.usage_metadata.output_tokens], [37, 7]);
  assert.equal(total.response_metadata.finish_reason, "stop");
});

test("a batch is answered in order", async () => {
  const messages = await open().batch([question, question, question]);
  assert.deepEqual(
    messages.map((message) => message.content),
    [answer, answer, answer],
  );
});

test("stop and abort work", async () => {
  assert.equal((await open().invoke(question, { stop: [" Paris"] })).content, "The capital of France is");
  const controller = new AbortController();
  await assert.rejects(async () => {
    for await (const _ of await open({ maxTokens: 1500 }).stream("Count to a thousand.", { signal: controller.signal })) controller.abort();
  });
});

test("errors are raised", async () => {
  await assert.rejects(open({ model: "nope" }).invoke(question), (error) => error.status === 404 && error.code === "model_not_found");
  await assert.rejects(open().invoke("hello ".repeat(9000)), (error) => /context_length_exceeded/.test(error.message));
  await assert.rejects(open({ temperature: 3 }).invoke(question), (error) => error.status === 400 && error.param === "temperature");
});

const City = z.object({ name: z.string(), country: z.string() }).describe("A city.");
const weather = tool(async ({ city }) => `In ${city} it is sunny, 24 degrees.`, {
  name: "get_weather",
  description: "The weather in a city.",
  schema: z.object({ city: z.string() }),
});
const coding = () => open({ model: coder, maxTokens: 120 });

for (const method of ["jsonSchema", "functionCalling", "jsonMode"]) {
  test(`structured output works by ${method}`, async () => {
    const chat = coding().withStructuredOutput(City, { method, name: "City" });
    const city = await chat.invoke(
      "Paris is the capital of France. Give the city's name and country as JSON with the keys name and country.",
    );
    assert.deepEqual(city, { name: "Paris", country: "France" });
  });
}

test("a call is made and its result answered", async () => {
  const chat = coding().bindTools([weather]);
  const question = new HumanMessage("What is the weather in Paris?");
  const first = await chat.invoke([question]);
  assert.deepEqual(
    first.tool_calls.map((call) => [call.name, call.args]),
    [["get_weather", { city: "Paris" }]],
  );
  const last = await chat.invoke([question, first, await weather.invoke(first.tool_calls[0])]);
  assert.match(last.content, /^[^{]*sunny[^{]*$/);
  let total;
  for await (const chunk of await chat.stream([question])) total = total ? total.concat(chunk) : chunk;
  assert.deepEqual(
    total.tool_calls.map((call) => [call.name, call.args]),
    [["get_weather", { city: "Paris" }]],
  );
});

test("an agent uses its tool", async () => {
  const { messages } = await createAgent({ model: coding(), tools: [weather] }).invoke({
    messages: [{ role: "user", content: "What is the weather in Paris?" }],
  });
  assert.equal(messages.length, 4);
  assert.equal(messages[2].content, "In Paris it is sunny, 24 degrees.");
  assert.match(messages[3].content, /^[^{]*sunny[^{]*$/);
});
