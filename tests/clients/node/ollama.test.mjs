// Tests Ollama's own Node package against the real binary.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { Ollama } from "ollama";
import { coder, model, withServer } from "./server.mjs";

const answer = "The capital of France is Paris.";
const question = "What is the capital of France?";
const options = { temperature: 0, num_predict: 12 };
const messages = [{ role: "user", content: question }];
const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather in a city.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];
let client, base;

withServer((url) => {
  base = url;
  client = new Ollama({ host: url });
});

test("a chat is answered", async () => {
  const chat = await client.chat({ model, messages, options });
  assert.deepEqual([chat.model, chat.message.content, chat.done, chat.done_reason], [model, answer, true, "stop"]);
  assert.deepEqual([chat.prompt_eval_count, chat.eval_count], [37, 7]);
  assert.ok(chat.total_duration > chat.eval_duration && chat.eval_duration > 0);
});

test("a chat is streamed", async () => {
  const pieces = [];
  for await (const piece of await client.chat({ model, messages, options, stream: true })) pieces.push(piece);
  assert.equal(pieces.map((piece) => piece.message.content).join(""), answer);
  assert.deepEqual([pieces.filter((piece) => piece.done).length, pieces.at(-1).done_reason], [1, "stop"]);
});

test("a text is generated and goes on", async () => {
  const first = await client.generate({ model, prompt: question, options });
  assert.equal(first.response, answer);
  const second = await client.generate({ model, prompt: "And of Italy?", context: first.context, options });
  assert.match(second.response, /Rome/);
});

test("a tool is called in two steps", async () => {
  const asked = [{ role: "user", content: "What is the weather in Paris? Use the tool." }];
  const first = await client.chat({ model: coder, messages: asked, tools, options: { ...options, num_predict: 64 } });
  const [call] = first.message.tool_calls;
  assert.deepEqual([call.function.name, call.function.arguments], ["get_weather", { city: "Paris" }]);
  const result = { role: "tool", tool_name: call.function.name, content: "Sunny, 24 degrees." };
  const all = [...asked, first.message, result];
  const second = await client.chat({ model: coder, messages: all, tools, options: { ...options, num_predict: 64 } });
  assert.match(second.message.content, /24/);
});

test("a format is followed and texts become vectors", async () => {
  const format = { type: "object", properties: { city: { type: "string", maxLength: 12 } }, required: ["city"] };
  const chat = await client.chat({ model, messages, format, options: { ...options, num_predict: 60 } });
  assert.ok(JSON.parse(chat.message.content).city);
  const { embeddings } = await client.embed({ model, input: ["a river", "a mountain"] });
  assert.deepEqual(
    embeddings.map((vector) => vector.length),
    [576, 576],
  );
});

test("models are listed, described, pulled and kept", async () => {
  const { models } = await client.list();
  assert.ok(models.some((one) => one.name === model && one.details.quantization_level === "Q4_1"));
  const shown = await client.show({ model: coder });
  assert.deepEqual(shown.capabilities, ["completion", "tools", "insert"]);
  assert.equal(shown.model_info["qwen2.context_length"], 32768);
  const progress = [];
  for await (const step of await client.pull({ model, stream: true })) progress.push(step.status);
  assert.equal(progress.at(-1), "success");
  assert.equal((await client.chat({ model: coder, messages: [], keep_alive: 0 })).done_reason, "unload");
  assert.ok((await client.ps()).models.every((one) => one.name !== coder));
  assert.equal((await client.generate({ model: coder, prompt: "" })).done_reason, "load");
  assert.match((await client.version()).version, /^0\.\d+\.\d+$/);
});

test("errors carry the server's words", async () => {
  const is_unknown = (error) => error.status_code === 404 && /no-such-model/.test(error.message);
  await assert.rejects(client.chat({ model: "no-such-model", messages }), is_unknown);
  await assert.rejects(client.generate({ model, prompt: "x", options: { mirostat: 1 } }), /options\.mirostat/);
  await assert.rejects(client.push({ model }), /does not upload models/);
});

test("a stream can be aborted", async () => {
  const stream = await client.generate({ model, prompt: "Tell me a long story.", stream: true, options: { num_predict: 2000 } });
  let count = 0;
  await assert.rejects(async () => {
    for await (const _ of stream) if (++count === 3) stream.abort();
  }, /abort/i);
  assert.ok(count >= 3 && count < 2000);
});

test("the piece of docs/ollama.md works as printed", async () => {
  const document = await readFile(new URL("../../../docs/ollama.md", import.meta.url), "utf8");
  const [[, code]] = [...document.matchAll(/```js\n(.*?)```/gs)];
  // The folder is inside this one, so that Node finds the packages.
  const folder = await mkdtemp(join(import.meta.dirname, ".piece-"));
  try {
    const script = join(folder, "piece.mjs");
    await writeFile(script, code.replaceAll("http://127.0.0.1:8080", base));
    const { stdout } = await promisify(execFile)(process.execPath, [script], { timeout: 60_000 });
    assert.equal(stdout.trim(), answer);
  } finally {
    await rm(folder, { recursive: true });
  }
});
