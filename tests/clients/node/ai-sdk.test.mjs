// Tests Vercel's AI SDK against the real binary, through its provider for OpenAI-compatible servers.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateObject, generateText, isStepCount, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { coder, model, withServer } from "./server.mjs";
import { checkWeatherDialogue } from "./weather.mjs";

const prompt = "What is the capital of France?";
const answer = "The capital of France is Paris.";
let penstock, ask;

withServer((url) => {
  penstock = createOpenAICompatible({ name: "penstock", baseURL: `${url}/v1`, includeUsage: true, supportsStructuredOutputs: true });
  ask = { model: penstock(model), prompt, temperature: 0, maxOutputTokens: 12, maxRetries: 0 };
});

test("generateText answers", async () => {
  const { text, finishReason, usage, response } = await generateText(ask);
  assert.deepEqual([text, finishReason], [answer, "stop"]);
  assert.deepEqual([usage.inputTokens, usage.outputTokens, usage.totalTokens], [37, 7, 44]);
  assert.equal(response.modelId, model);
  assert.match(response.id, /^chatcmpl-/);
});

test("streamText streams the answer", async () => {
  const result = streamText(ask);
  const pieces = [];
  for await (const piece of result.textStream) pieces.push(piece);
  assert.equal(pieces.join(""), answer);
  assert.ok(pieces.length > 3);
  assert.equal(await result.finishReason, "stop");
  const usage = await result.usage;
  assert.deepEqual([usage.inputTokens, usage.outputTokens], [37, 7]);
});

test("instructions and earlier turns are used", async () => {
  const { prompt: _, ...rest } = ask;
  const messages = [
    { role: "user", content: [{ type: "text", text: "Hi" }] },
    { role: "assistant", content: "Hello." },
    { role: "user", content: prompt },
  ];
  const { text, usage } = await generateText({ ...rest, instructions: "You answer in one word.", messages });
  assert.ok(text && usage.inputTokens > 37);
});

test("completions are answered", async () => {
  const { text } = await generateText({
    ...ask,
    model: penstock.completionModel(model),
    prompt: "The capital of France is",
    maxOutputTokens: 6,
  });
  assert.match(text, /Paris/);
});

test("stop texts, seeds and abort work", async () => {
  assert.equal((await generateText({ ...ask, stopSequences: [" Paris"] })).text, "The capital of France is");
  const seeded = { ...ask, prompt: "Tell me a story.", temperature: 1, seed: 3 };
  assert.equal((await generateText(seeded)).text, (await generateText(seeded)).text);
  const controller = new AbortController();
  const result = streamText({
    ...ask,
    maxOutputTokens: 1500,
    prompt: "Count to a thousand.",
    abortSignal: controller.signal,
    onError() {},
  });
  let ended;
  for await (const part of result.stream) {
    if (part.type === "text-delta") controller.abort();
    ended = part.type;
  }
  assert.equal(ended, "abort");
});

test("errors are those of the SDK", async () => {
  await assert.rejects(generateText({ ...ask, model: penstock("nope") }), (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.deepEqual([error.statusCode, error.data.error.code, error.isRetryable], [404, "model_not_found", false]);
    return true;
  });
  await assert.rejects(
    generateText({ ...ask, prompt: "hello ".repeat(9000) }),
    (error) => error.data.error.code === "context_length_exceeded",
  );
});

const City = z.object({ name: z.string(), country: z.string() });
const aboutParis = "Paris is the capital of France. Give the city's name and country as JSON.";
const weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `In ${city} it is sunny, 24 degrees.`,
});

test("generateObject and streamObject give an object", async () => {
  const wanted = { ...ask, model: penstock(coder), prompt: aboutParis, maxOutputTokens: 60, schema: City };
  const { object, finishReason } = await generateObject(wanted);
  assert.deepEqual([object, finishReason], [{ name: "Paris", country: "France" }, "stop"]);
  const pieces = [];
  for await (const piece of streamObject(wanted).partialObjectStream) pieces.push(piece);
  assert.ok(pieces.length > 2);
  assert.deepEqual(pieces.at(-1), { name: "Paris", country: "France" });
});

test("an output has the type that is asked for", async () => {
  const { output } = await generateText({
    ...ask,
    model: penstock(coder),
    prompt: aboutParis,
    maxOutputTokens: 60,
    output: Output.object({ schema: City }),
  });
  assert.deepEqual(output, { name: "Paris", country: "France" });
});

test("a tool is called and its result answered", async () => {
  const wanted = {
    ...ask,
    model: penstock(coder),
    prompt: "What is the weather in Paris?",
    maxOutputTokens: 120,
    tools: { get_weather: weather },
    stopWhen: isStepCount(3),
  };
  const { steps, text } = await generateText(wanted);
  assert.equal(steps.length, 2);
  assert.equal(steps[0].finishReason, "tool-calls");
  await checkWeatherDialogue(wanted, steps, text);
});

test("a required call comes", async () => {
  for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }]) {
    const { toolCalls } = await generateText({
      ...ask,
      prompt: "Hello!",
      maxOutputTokens: 120,
      tools: { get_weather: weather },
      toolChoice,
    });
    assert.ok(toolCalls.length && toolCalls.every((call) => call.toolName === "get_weather" && typeof call.input.city === "string"));
  }
});
