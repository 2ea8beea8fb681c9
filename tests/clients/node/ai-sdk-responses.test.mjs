// Tests Vercel's AI SDK against the real binary, through its provider for OpenAI itself, which uses /v1/responses.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, Output, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";
import { coder, model, withServer } from "./server.mjs";
import { checkWeatherDialogue } from "./weather.mjs";

const prompt = "What is the capital of France?";
let openai, ask, sent;

withServer((url) => {
  const spy = (to, options) => {
    sent = options.body;
    return fetch(to, options);
  };
  openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none", fetch: spy });
  ask = { model: openai(model), temperature: 0, maxOutputTokens: 12, maxRetries: 0 };
});

test("text comes whole and streamed", async () => {
  const { text, finishReason, usage, warnings } = await generateText({ ...ask, prompt });
  assert.deepEqual([text, finishReason, warnings], ["The capital of France is Paris.", "stop", []]);
  assert.deepEqual([usage.inputTokens, usage.outputTokens, usage.totalTokens], [37, 7, 44]);
  const result = streamText({ ...ask, prompt });
  const pieces = [];
  for await (const piece of result.textStream) pieces.push(piece);
  assert.ok(pieces.length > 3);
  assert.deepEqual([pieces.join(""), await result.finishReason], [text, "stop"]);
  assert.equal((await generateText({ ...ask, prompt, maxOutputTokens: 3 })).finishReason, "length");
});

test("a conversation continues from a stored response", async () => {
  const messages = [{ role: "user", content: "My name is Ada." }];
  const first = await generateText({ ...ask, messages });
  messages.push(...first.response.messages, { role: "user", content: "What is my name?" });
  const second = await generateText({ ...ask, messages });
  assert.match(sent, /item_reference/, "else this tests nothing");
  assert.ok(second.text && second.usage.inputTokens > first.usage.totalTokens);
});

test("a tool is called and its result answered", async () => {
  const get_weather = tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `In ${city} it is sunny, 24 degrees.`,
  });
  const wanted = {
    ...ask,
    model: openai(coder),
    prompt: "What is the weather in Paris?",
    maxOutputTokens: 100,
    tools: { get_weather },
    stopWhen: isStepCount(3),
  };
  const { steps, text } = await generateText(wanted);
  assert.deepEqual(
    steps.map((step) => step.finishReason),
    ["tool-calls", "stop"],
  );
  await checkWeatherDialogue(wanted, steps, text);
});

test("an output has the type that is asked for", async () => {
  const schema = z.object({ name: z.string(), country: z.string() });
  const about = "Paris is the capital of France. Give the city's name and country as JSON.";
  const { output } = await generateText({
    ...ask,
    model: openai(coder),
    prompt: about,
    maxOutputTokens: 60,
    output: Output.object({ schema }),
  });
  assert.deepEqual(output, { name: "Paris", country: "France" });
});

test("errors are those of the SDK", async () => {
  await assert.rejects(generateText({ ...ask, prompt, model: openai("nope") }), (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.deepEqual([error.statusCode, error.data.error.code, error.isRetryable], [404, "model_not_found", false]);
    return true;
  });
});
