// The conversation on the page.

import { on } from "./bus.js";
import { $, make } from "./dom.js";
import { LiveTurn } from "./live.js";
import { continuesTexts } from "./models.js";
import { inPlace, startScroll, toEnd } from "./scroll.js";
import { shown, shownPath } from "./threads.js";
import { groups } from "./tree.js";
import { makeTurn } from "./turn.js";

/** Number of last turns whose Markdown is shown at once. The others show it when the reader comes near. */
const SHOWN_AT_ONCE = 12;

// Maps message ids to {turn, message, signature, live}. live: the LiveTurn of an answer in progress.
let turns = new Map();
// The entry of the answer that has just ended.
let finished = null;
let actions = {};

const near = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    turns.get(target.dataset.id)?.turn.render?.();
  }
}, { root: $("scroll"), rootMargin: "1200px 0px" });

function placeOf(families, message, isLast) {
  const siblings = families.get(message.parent);
  return { siblings, index: siblings.indexOf(message), isLast, isLive: message.state === "streaming" };
}

/** What a message's element depends on. An answer in progress grows without a new element. */
function signatureOf(message, place) {
  const size = place.isLive ? "" : [message.content.length, message.reasoning?.length, message.calls?.length, message.results?.length];
  return JSON.stringify([message.state, size, place.index, place.siblings.length, place.isLast, message.note, message.error]);
}

const STARTERS = ["Name three rivers.", "What is a penstock?", "Write a haiku about water."];
const BEGINNINGS = ["The longest rivers of the world are", "A penstock is a pipe that", "Once upon a time, by the water,"];
// Whether the starters are texts for a base model.
let areTexts = false;
function starters() {
  areTexts = continuesTexts();
  const buttons = (areTexts ? BEGINNINGS : STARTERS).map((text) => {
    const button = make("button", { type: "button" }, text);
    button.addEventListener("click", () => actions.send(text));
    return button;
  });
  const title = make("p", {}, areTexts ? "Which text should go on?" : "What would you like to ask?");
  return make("div", { id: "empty" }, title, make("div", {}, ...buttons));
}

function show() {
  const { thread } = shown;
  const list = shownPath(thread);
  const families = groups(thread.messages);
  const before = turns;
  turns = new Map();
  list.forEach((message, i) => {
    const place = placeOf(families, message, i === list.length - 1);
    const signature = signatureOf(message, place);
    const known = before.get(message.id);
    if (known?.signature === signature && known.live?.follow(message) !== false) {
      turns.set(message.id, known);
      return;
    }
    const old = finished?.message === message ? finished.turn : null;
    const later = i < list.length - SHOWN_AT_ONCE && !known;
    const turn = makeTurn(message, place, actions, later || old);
    if (old) adopt(turn, old);
    else if (later) near.observe(turn.node);
    turns.set(message.id, { turn, message, signature, live: place.isLive && turn.view ? new LiveTurn(turn, message) : null });
  });
  for (const [id, { live }] of before) if (live && turns.get(id)?.live !== live) live.leave();
  arrange([...turns.values()].map(({ turn }) => turn.node));
  $("log").ariaBusy = String(Boolean(thread.run));
}

/** Keeps the text elements of an answer that was just written, so that a selection in it survives. */
function adopt(turn, old) {
  turn.text.replaceWith(old.text);
  Object.assign(turn, { text: old.text, view: old.view, render: null });
  if (turn.thoughts) turn.thoughts.node.open = old.thoughts?.node.open ?? false;
}

/** Makes `nodes` the children of the log, without touching those that are already in place. */
function arrange(nodes) {
  const log = $("log");
  if (!nodes.length) return log.replaceChildren(starters());
  const wanted = new Set(nodes);
  for (const child of [...log.children]) if (!wanted.has(child)) child.remove();
  nodes.forEach((node, i) => log.children[i] !== node && log.insertBefore(node, log.children[i] ?? null));
}

/** The LiveTurn of the answer in progress, if it is shown. */
const liveOf = (thread, message) => (thread === shown.thread ? turns.get(message.id)?.live : null);

function ended(thread, message) {
  if (thread !== shown.thread) return;
  const entry = turns.get(message.id);
  inPlace(() => {
    if (entry?.live) {
      entry.live.finish();
      finished = entry;
    }
    show();
  });
  finished = null;
  $("rate").textContent = "";
}

export function startLog(given) {
  actions = given;
  startScroll();
  on("thread", () => {
    for (const { live } of turns.values()) live?.leave();
    turns = new Map();
    $("rate").textContent = "";
    show();
    toEnd();
  });
  on("models", () => $("empty") && areTexts !== continuesTexts() && show());
  on("messages", (thread) => thread === shown.thread && show());
  on("running", (thread) => {
    if (thread !== shown.thread) return;
    show();
    toEnd();
  });
  on("pieces", (thread, message, piece) => liveOf(thread, message)?.take(piece));
  on("progress", (thread, message, progress) => liveOf(thread, message)?.read(progress));
  on("ended", ended);
}
