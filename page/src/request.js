// Builds the request of a conversation.

import { address, key, pathOf } from "./api.js";

// Name, label, minimum, maximum, step, and the meaning of an empty field unless the model defines it.
export const NUMBERS = [
  ["temperature", "Temperature", 0, 2, 0.1, "1"],
  ["max_completion_tokens", "Max tokens", 1, 2 ** 31, 1, "no limit"],
  ["top_p", "Top p", 0, 1, 0.05, "1"],
  ["top_k", "Top k", -1, 2 ** 31, 1, "off"],
  ["min_p", "Min p", 0, 1, 0.01, "0"],
  ["seed", "Seed", -(2 ** 53), 2 ** 53, 1, "random"],
  ["repetition_penalty", "Repetition penalty", 0, 10, 0.05, "1"],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1, "0"],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1, "0"],
];
export const CHOICES = [
  ["reasoning_effort", "Reasoning effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"]],
  ["tool_choice", "Use of tools", ["auto", "required", "none"]],
];

/** The tools that a conversation defines. Throws an error that says what is wrong. */
export function toolsOf(text) {
  if (!text?.trim()) return [];
  let list;
  try {
    list = JSON.parse(text);
  } catch (error) {
    throw new Error("the tools must be JSON: " + error.message);
  }
  list = Array.isArray(list) ? list : [list];
  return list.map((tool, i) => {
    const one = tool?.function ? tool : { type: "function", function: tool };
    if (typeof one.function?.name !== "string") throw new Error(`tool ${i + 1} has no name: expected {"name": …, "parameters": {…}}`);
    return one;
  });
}

export const stopsOf = (text) => (text ?? "").split("\n").filter(Boolean).map((one) => one.replaceAll("\\n", "\n"));

function parameters(settings) {
  const out = {};
  for (const [name] of NUMBERS) {
    if ((settings[name] ?? "") !== "") out[name] = Number(settings[name]);
  }
  const stop = stopsOf(settings.stop);
  if (stop.length) out.stop = stop;
  if (settings.reasoning_effort) out.reasoning_effort = settings.reasoning_effort;
  const tools = toolsOf(settings.tools);
  if (tools.length) out.tools = tools;
  if (tools.length && settings.tool_choice) out.tool_choice = settings.tool_choice;
  return out;
}

/** A user's message with its attachments. Each text is in a fence that is longer than any fence inside it. Pictures that were not inlined
 * are for a model that reads none, which gets their names. */
function contentOf({ content, attachments = [] }) {
  const texts = attachments.filter((file) => file.text !== undefined).map(({ name, text }) => {
    const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), (found) => found[0].length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  const unread = attachments.filter((file) => file.picture).map(({ name }) => `[picture: ${name}]`);
  const text = [...unread, ...texts, content].filter(Boolean).join("\n\n");
  const images = attachments.filter((file) => file.image).map((file) => ({ type: "image_url", image_url: { url: file.image } }));
  return images.length ? [...images, ...(text ? [{ type: "text", text }] : [])] : text;
}

const call = ({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } });

function spoken(message) {
  switch (message.role) {
    case "user":
      return [{ role: "user", content: contentOf(message) }];
    case "tool":
      return message.results.map(({ id, content }) => ({ role: "tool", tool_call_id: id, content }));
    default: {
      const calls = message.calls?.length ? { tool_calls: message.calls.map(call) } : {};
      return [{ role: "assistant", content: message.content, ...calls }];
    }
  }
}

const isEmpty = (message) => message.role === "assistant" && !message.content && !message.calls?.length;

/** The conversation for the server. Leaves out calls without results, and then questions without an answer, because many templates require
 * alternating roles. */
function messagesOf(list, settings) {
  const full = list.filter((message) => !isEmpty(message));
  const closed = full.filter((message, i) => !message.calls?.length || full[i + 1]?.role === "tool" || i === full.length - 1);
  const kept = closed.filter((message, i) => message.role !== "user" || closed[i + 1]?.role !== "user");
  const system = (settings.system ?? "").trim();
  return [...(system ? [{ role: "system", content: system }] : []), ...kept.flatMap(spoken)];
}

/** Tokens that a base model continues a text by, unless the user sets another number. Many such models never end by themselves. */
export const TEXT_TOKENS = 256;

/** The body of a request to a base model, which continues the last text by itself. `continues`: and the answer so far. */
function textBody({ model, list, settings, continues = false }) {
  const { max_completion_tokens: most = TEXT_TOKENS, ...rest } = parameters({ ...settings, tools: "", reasoning_effort: "" });
  const text = list.findLast((message) => message.role === "user");
  const prompt = (text ? contentOf(text) : "") + (continues ? list.at(-1).content : "");
  return { model, prompt, ...rest, max_tokens: most, stream: true, stream_options: { include_usage: true } };
}

/** The body of a request. `continues`: the last message is the answer to continue. `isText`: the model continues texts. */
export function requestBody({ isText = false, ...about }) {
  return isText ? textBody(about) : chatBody(about);
}

function chatBody({ model, list, settings, continues = false, progress = false }) {
  const messages = messagesOf(list, settings);
  const last = list.at(-1);
  if (continues && last?.reasoning) messages.at(-1).reasoning_content = last.reasoning;
  const more = continues ? { continue_final_message: true, add_generation_prompt: false } : {};
  const told = { include_usage: true, ...(progress ? { include_progress: true } : {}) };
  return { model, messages, ...parameters(settings), ...more, stream: true, stream_options: told };
}

/** The request as a shell command, which names a variable instead of the key. */
export function curl(body) {
  const quote = (text) => "'" + text.replaceAll("'", "'\\''") + "'";
  const parts = ["curl -N " + quote(address(pathOf(body)).href), "-H 'content-type: application/json'"];
  if (key.get()) parts.push('-H "authorization: Bearer $PENSTOCK_API_KEY"');
  return [...parts, "-d " + quote(JSON.stringify(body))].join(" \\\n  ");
}
