// The conversation on the page.

import { on } from "./bus.js";
import { callCard } from "./calls.js";
import { $, make } from "./dom.js";
import { shown, shownPath } from "./threads.js";
import { groups } from "./tree.js";
import { makeTurn, reasoning } from "./turn.js";

/** Turns at the end whose Markdown is shown at once. The others show it when the reader comes near. */
const SHOWN_AT_ONCE = 12;

const scroller = $("scroll");
let follows = true;
const atEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;

function toEnd(force) {
  if (force) follows = true;
  if (follows) scroller.scrollTop = scroller.scrollHeight;
  $("latest").hidden = follows || atEnd();
}

// {turn, signature} by the ids of messages
let turns = new Map();
// {turn, message, waiting, thoughts, frame} of the answer in progress; the one that has just ended
let live = null;
let finished = null;
let actions = {};

const near = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    turns.get(target.dataset.id)?.turn.render?.();
  }
}, { root: scroller, rootMargin: "1200px 0px" });

function placeOf(families, message, isLast) {
  const siblings = families.get(message.parent);
  return { siblings, index: siblings.indexOf(message), isLast, isLive: message.state === "streaming" };
}

/** What the element of a message depends on. */
function signatureOf(message, place, isOurs) {
  const size = isOurs ? "" : [message.content.length, message.reasoning?.length, message.calls?.length, message.results?.length];
  return JSON.stringify([message.state, size, place.index, place.siblings.length, place.isLast, message.note, message.error]);
}

const STARTERS = ["Name three rivers.", "What is a penstock?", "Write a haiku about water."];
function starters() {
  const buttons = STARTERS.map((text) => {
    const button = make("button", { type: "button" }, text);
    button.addEventListener("click", () => actions.send(text));
    return button;
  });
  return make("div", { id: "empty" }, make("p", {}, "What would you like to ask?"), make("div", {}, ...buttons));
}

function show() {
  const { thread } = shown;
  const list = shownPath(thread);
  const families = groups(thread.messages);
  const before = turns;
  turns = new Map();
  list.forEach((message, i) => {
    const place = placeOf(families, message, i === list.length - 1);
    const isOurs = thread.run?.message === message;
    const signature = signatureOf(message, place, isOurs);
    const known = before.get(message.id);
    if (known?.signature === signature) {
      turns.set(message.id, known);
      return;
    }
    const old = finished?.message === message ? finished.turn : null;
    const later = i < list.length - SHOWN_AT_ONCE && !known;
    const turn = makeTurn(message, place, actions, later || old);
    if (old) adopt(turn, old);
    else if (later) near.observe(turn.node);
    turns.set(message.id, { turn, signature });
    if (isOurs) live = begin(turn, message);
    else if (place.isLive) turn.node.classList.add("running");
  });
  arrange([...turns.values()].map(({ turn }) => turn.node));
  $("log").ariaBusy = String(Boolean(thread.run));
  toEnd();
}

/** Keeps the text of an answer that was just written, so that a selection in it stays. */
function adopt(turn, old) {
  turn.text.replaceWith(old.text);
  Object.assign(turn, { text: old.text, view: old.view, render: null });
  if (turn.thoughts) turn.thoughts.node.open = old.thoughts?.node.open ?? false;
}

/** Makes `nodes` the children of the log and leaves alone those that are in their places. */
function arrange(nodes) {
  const log = $("log");
  if (!nodes.length) return log.replaceChildren(starters());
  const wanted = new Set(nodes);
  for (const child of [...log.children]) if (!wanted.has(child)) child.remove();
  nodes.forEach((node, i) => log.children[i] !== node && log.insertBefore(node, log.children[i] ?? null));
}

/** Prepares a turn for the pieces of its answer. */
function begin(turn, message) {
  turn.node.classList.add("running");
  turn.view.onGrow = () => toEnd();
  const waiting = make("div", { className: "waiting" }, "Waiting for the first token");
  if (!message.content && !message.reasoning) turn.text.before(waiting);
  return { turn, message, waiting, thoughts: "", frame: 0 };
}

function thought(text) {
  const { turn } = live;
  if (!turn.thoughts) {
    turn.thoughts = reasoning("");
    turn.thoughts.node.open = true;
    turn.text.before(turn.thoughts.node);
  }
  live.thoughts += text;
  live.frame ||= requestAnimationFrame(showThoughts);
}

function showThoughts() {
  if (!live?.thoughts) return;
  const { text } = live.turn.thoughts;
  if (text.lastChild) text.lastChild.appendData(live.thoughts);
  else text.append(live.thoughts);
  Object.assign(live, { thoughts: "", frame: 0 });
  toEnd();
}

function pieces(thread, message, { reasoning: thoughts, content, calls, rate }) {
  if (thread !== shown.thread || live?.message !== message) return;
  live.waiting.remove();
  if (thoughts) thought(thoughts);
  if (content) {
    // the answer begins: the reasoning folds
    if (live.turn.thoughts?.node.open && !live.turn.view.text) live.turn.thoughts.node.open = false;
    live.turn.view.push(content);
  }
  if (calls) {
    live.turn.calls.replaceChildren(...message.calls.filter(Boolean).map(callCard));
    toEnd();
  }
  $("rate").textContent = rate;
}

const count = new Intl.NumberFormat("en");
function progress(thread, message, { total, processed }) {
  if (live?.message !== message || !live.waiting.isConnected) return;
  const bar = make("progress", { max: total, value: processed, ariaLabel: "Prompt" });
  live.waiting.replaceChildren(`Reading the prompt: ${count.format(processed)} of ${count.format(total)} tokens`, bar);
}

function ended(thread, message) {
  if (thread !== shown.thread) return;
  if (live?.message === message) {
    live.turn.view.finish();
    showThoughts();
    finished = live;
    live = null;
  }
  $("rate").textContent = "";
  const [followed, at] = [follows, scroller.scrollTop];
  show();
  finished = null;
  if (!followed) scroller.scrollTop = at;
}

export function startLog(given) {
  actions = given;
  let before = 0;
  scroller.addEventListener("scroll", () => {
    // Text that grows moves the end away; only the reader goes up.
    if (atEnd()) follows = true;
    else if (scroller.scrollTop < before) follows = false;
    before = scroller.scrollTop;
    $("latest").hidden = follows;
  });
  new ResizeObserver(() => toEnd()).observe($("log"));
  $("latest").addEventListener("click", () => {
    toEnd(true);
    $("prompt").focus();
  });
  on("thread", () => {
    turns = new Map();
    live = null;
    follows = true;
    show();
  });
  on("messages", (thread) => thread === shown.thread && show());
  on("running", (thread) => {
    if (thread !== shown.thread) return;
    follows = true;
    show();
  });
  on("pieces", pieces);
  on("progress", progress);
  on("ended", ended);
}
