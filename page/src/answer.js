// Requests an answer from the server and writes it into a message, piece by piece.

import { complete } from "./api.js";
import { emit } from "./bus.js";
import { due } from "./frames.js";
import { continuesTexts, listModels, modelInfo, readsPictures } from "./models.js";
import { inlined } from "./pictures.js";
import { requestBody } from "./request.js";
import { append, keep } from "./threads.js";
import { path } from "./tree.js";
import { writes } from "./writers.js";

/** Least time between two copies of an unfinished answer in the browser's storage [ms]. */
const KEEP_EVERY = 400;

const count = new Intl.NumberFormat("en");
export const rate = (tokens, ms) => (tokens > 1 && ms > 0 ? count.format(Math.round(((tokens - 1) / ms) * 10000) / 10) + " tokens/s" : "");

/** Adds pieces of calls to the message's calls. */
function addCalls(message, pieces) {
  message.calls ??= [];
  for (const { index, id, function: piece } of pieces) {
    const call = (message.calls[index] ??= { id: "", name: "", arguments: "" });
    if (id) call.id = id;
    call.name += piece?.name ?? "";
    call.arguments += piece?.arguments ?? "";
  }
}

function note(run) {
  const { usage, pieces, first, last, start, reason } = run;
  const tokens = usage?.completion_tokens ?? pieces;
  const context = modelInfo(run.message.model)?.max_model_len;
  const said = [];
  if (reason === "stopped") said.push("stopped");
  if (reason === "length") said.push("cut at the token limit");
  if (tokens) said.push((usage ? "" : "about ") + count.format(tokens) + (tokens === 1 ? " token" : " tokens"));
  // The text of a call arrives at once, long after its first token: its arrival does not tell the speed.
  if (tokens && !run.message.calls?.length) said.push(rate(tokens, last - first));
  if (first) said.push("first after " + ((first - start) / 1000).toFixed(2) + " s");
  if (usage) said.push(count.format(usage.total_tokens) + (context ? " of " + count.format(context) : "") + " tokens of context");
  return said.filter(Boolean).join(" · ");
}

/** Adds a chunk that arrived at the time `at`. */
function take(run, chunk, at) {
  const { message } = run;
  run.usage = chunk.usage ?? run.usage;
  if (chunk.prompt_progress) emit("progress", run.thread, message, chunk.prompt_progress);
  const choice = chunk.choices?.[0];
  if (!choice) return;
  run.reason = choice.finish_reason ?? run.reason;
  const { reasoning_content: reasoning, content, tool_calls: calls } = choice.delta ?? { content: choice.text };
  if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
  if (content) message.content += content;
  if (calls) addCalls(message, calls);
  if (!reasoning && !content && !calls) return;
  run.pieces += 1;
  run.last = at;
  // The model is loaded now, and its context is known.
  if (!run.first && modelInfo(message.model)?.loaded === false) listModels();
  run.first ||= run.last;
  emit("pieces", run.thread, message, { reasoning, content, calls, rate: () => (calls ? "" : rate(run.pieces, run.last - run.first)) });
}

/** Returns a function that copies the answer to the storage, one copy at a time, so that a reload loses little. Long answers are copied
 * less often. */
function keeper(run) {
  let next = performance.now() + KEEP_EVERY;
  let writing = null;
  return () => {
    const now = performance.now();
    if (writing || now < next) return;
    writing = keep(run.thread, [run.message]).finally(() => {
      writing = null;
      next = performance.now() + Math.max(KEEP_EVERY, 20 * (performance.now() - now));
    });
  };
}

function end(run, error) {
  const { message, controller } = run;
  delete message.error;
  if (controller.signal.aborted) {
    run.reason = "stopped";
  } else if (error) {
    const text = error instanceof TypeError ? "the server cannot be reached, or it closed the connection" : error.message;
    message.error = { message: text, small: error.small ?? "" };
  }
  message.state = error ? (controller.signal.aborted ? "stopped" : "failed") : run.reason === "length" ? "cut" : "done";
  message.calls = message.calls?.filter(Boolean);
  message.note = note(run);
}

/** Answers the message `parent`. If `message` is given, continues that answer. */
export async function answer(thread, { parent, message, model, settings }) {
  const continues = Boolean(message);
  const target = message ?? append(thread, parent, { role: "assistant", model, state: "streaming" });
  Object.assign(target, { state: "streaming" });
  const controller = new AbortController();
  const run = { thread, message: target, controller, start: performance.now(), first: 0, last: 0, pieces: 0, usage: null, reason: null };
  thread.run = run;
  emit("running", thread);
  const copied = keeper(run);
  const written = writes(target.id);
  let error = null;
  try {
    const messages = path(thread.messages, continues ? target.id : parent);
    const list = readsPictures(model) ? await inlined(messages) : messages;
    const body = requestBody({ model, list, settings, continues, progress: true, isText: continuesTexts(model) });
    for await (const { chunk, at } of complete(body, controller.signal, due)) {
      take(run, chunk, at);
      copied();
    }
  } catch (caught) {
    error = caught;
  }
  if (run.usage && !modelInfo(target.model)?.max_model_len) await listModels();
  end(run, error);
  thread.run = null;
  await keep(thread, [target], { updated: Date.now() });
  written();
  emit("ended", thread, target, controller.signal.aborted ? null : error);
}

export function stop(thread) {
  thread.run?.controller.abort();
}
