// An answer that grows on the page, written by this tab or by another one. Changes are drawn together (frames.js).

import { callCard } from "./calls.js";
import { $, make } from "./dom.js";
import { draw, undraw } from "./frames.js";
import { growChildren } from "./grow.js";
import { reasoning } from "./turn.js";

const count = new Intl.NumberFormat("en");

export class LiveTurn {
  constructor(turn, message) {
    Object.assign(this, { turn, message, thoughts: "", content: "", hasCalls: false, rate: null, progress: null });
    this.job = () => this.show();
    this.waiting = make("div", { className: "waiting" }, "Waiting for the first token");
    this.note(message);
    turn.node.classList.add("running");
    turn.render?.();
    if (!message.content && !message.reasoning) turn.text.before(this.waiting);
  }

  /** Records how much of the message is shown, or waits to be shown. */
  note({ content, reasoning: thoughts = "" }) {
    this.known = { content, thoughts };
  }

  /** Adds a piece of the answer. `rate` returns the page's text about its speed. */
  take({ reasoning: thoughts, content, calls, rate }) {
    this.note(this.message);
    this.thoughts += thoughts ?? "";
    this.content += content ?? "";
    this.hasCalls ||= Boolean(calls);
    this.rate = rate ?? null;
    draw(this.job);
  }

  /** Takes over the message's new state, in a tab that does not write it. Returns false if the new text does not begin with the old one. */
  follow(message) {
    const { content, reasoning: thoughts = "", calls } = message;
    const { known } = this;
    if (!content.startsWith(known.content) || !thoughts.startsWith(known.thoughts)) return false;
    this.message = message;
    const more = { reasoning: thoughts.slice(known.thoughts.length), content: content.slice(known.content.length), calls };
    if (more.reasoning || more.content || calls) this.take(more);
    return true;
  }

  /** Takes how much of the prompt has been read: {total, processed} [tokens]. */
  read(progress) {
    this.progress = progress;
    draw(this.job);
  }

  show() {
    const { turn, message, thoughts, content, progress } = this;
    Object.assign(this, { thoughts: "", content: "", progress: null });
    if (thoughts || content || this.hasCalls) this.waiting.remove();
    else if (progress) this.showProgress(progress);
    if (thoughts) this.showThoughts(thoughts);
    if (content) {
      // Folds the reasoning when the answer begins.
      if (turn.thoughts?.node.open && !turn.view.text) turn.thoughts.node.open = false;
      turn.view.push(content);
    }
    if (this.hasCalls) growChildren(turn.calls, message.calls.filter(Boolean).map(callCard));
    this.hasCalls = false;
    if (this.rate) $("rate").textContent = this.rate();
  }

  showThoughts(text) {
    const { turn } = this;
    if (!turn.thoughts) {
      turn.thoughts = reasoning("");
      turn.thoughts.node.open = true;
      turn.text.before(turn.thoughts.node);
    }
    const { text: node } = turn.thoughts;
    if (node.lastChild) node.lastChild.appendData(text);
    else node.append(text);
  }

  showProgress({ total, processed }) {
    if (!this.waiting.isConnected) return;
    const bar = make("progress", { max: total, value: processed, ariaLabel: "Prompt" });
    const said = `Reading the prompt: ${count.format(processed)} of ${count.format(total)} tokens`;
    this.waiting.replaceChildren(said, bar);
  }

  /** Stops drawing. */
  leave() {
    undraw(this.job);
  }

  /** Shows the rest at once, including what only the whole answer determines. */
  finish() {
    this.leave();
    this.show();
    this.turn.view.finish();
  }
}
