// The AI SDK's weather dialogue: one call, its result, an answer. It is the same over chat and over responses.
import assert from "node:assert/strict";
import { streamText } from "ai";

// Checks the dialogue's `steps` and final `text`, then streams the same request. `wanted`: the arguments of the request.
export async function checkWeatherDialogue(wanted, steps, text) {
  assert.deepEqual(
    steps[0].toolCalls.map((call) => [call.toolName, call.input]),
    [["get_weather", { city: "Paris" }]],
  );
  assert.match(text, /^[^{]*sunny[^{]*$/);
  const kinds = [];
  for await (const part of streamText(wanted).stream) kinds.push(part.type);
  for (const kind of ["tool-input-start", "tool-input-delta", "tool-input-end", "tool-call", "tool-result", "text-delta", "finish"])
    assert.ok(kinds.includes(kind), kind);
  assert.ok(!kinds.includes("error"));
}
