// Markdown that grows. Blocks that are complete are never parsed again, an open block of code only gets the new text, and a frame waits
// longer after one that took long. So the work for an answer is in proportion to its length.

import { codeBlock } from "./code.js";
import { make } from "./dom.js";
import { block, lex } from "./markdown.js";

/** The share of time that a long unfinished block may take: a pass that took 5 ms is followed by a pause of at least 50 ms. */
const PAUSE = 10;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^\n`]*)\n/;

function build(token) {
  try {
    return block(token);
  } catch {
    // for example too deep for the stack
    return make("p", { className: "plain" }, token.raw);
  }
}

function parse(text) {
  try {
    return lex(text);
  } catch {
    return [{ type: "html", raw: text }];
  }
}

export class MarkdownView {
  constructor(node) {
    this.node = node;
    this.text = "";
    this.pending = "";
    // {raw, node} of each block; those before `stable` are complete, and so is the text before `offset`
    this.blocks = [];
    this.stable = 0;
    this.offset = 0;
    // {code, end} of the block of code that is still open
    this.open = null;
    this.timer = 0;
    this.pause = 0;
    this.onGrow = () => {};
  }

  /** Shows a whole text at once. */
  set(text) {
    this.text = text.replace(/\r\n?/g, "\n");
    this.open = null;
    this.replace(0, parse(this.text));
  }

  push(piece) {
    this.pending += piece.replace(/\r\n?/g, "\n");
    this.timer ||= setTimeout(() => requestAnimationFrame(() => this.flush()), this.pause);
  }

  flush() {
    clearTimeout(this.timer);
    this.timer = 0;
    const piece = this.pending;
    if (!piece) return;
    const start = performance.now();
    this.pending = "";
    const line = this.text.lastIndexOf("\n") + 1;
    this.text += piece;
    if (this.open && !this.open.end.test(this.text.slice(line))) {
      this.open.code.append(piece);
    } else {
      this.open = null;
      this.grow();
    }
    this.pause = Math.min(2000, (performance.now() - start) * PAUSE);
    this.onGrow();
  }

  /** Parses what follows the complete blocks, all but the last of which are complete now. */
  grow() {
    const tail = this.text.slice(this.offset);
    const tokens = parse(tail);
    const last = tokens.findLastIndex((token) => token.type !== "space");
    const fence = last >= 0 && tokens[last].type === "code" && FENCE.exec(tokens[last].raw);
    const end = fence && new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}[ \\t]*$`, "m");
    const isOpen = fence && !end.test(tokens[last].raw.slice(fence[0].length));
    if (isOpen) {
      const { node, code } = codeBlock("", fence[2]);
      // the parser takes the last line break away
      code.append(tokens[last].raw.slice(fence[0].length));
      tokens[last] = { ...tokens[last], node };
      this.open = { code, end };
    }
    this.replace(this.stable, tokens);
    for (const token of tokens.slice(0, Math.max(0, last))) {
      this.offset += token.raw.length;
      this.stable += 1;
    }
  }

  /** Replaces the blocks from the index `from` on. A block whose text is the same keeps its element. */
  replace(from, tokens) {
    const isSame = (old, token) => old && token && old.raw === token.raw && !old.open && !token.node;
    let at = from;
    while (isSame(this.blocks[at], tokens[at - from])) at += 1;
    for (const old of this.blocks.splice(at)) old.node?.remove();
    for (const token of tokens.slice(at - from)) {
      const node = token.node ?? build(token);
      if (node) this.node.append(node);
      this.blocks.push({ raw: token.raw, node, open: Boolean(token.node) });
    }
  }

  /** Shows the rest of the text, with what only the whole text tells: links whose addresses stand at its end, for example. */
  finish() {
    this.flush();
    this.open = null;
    this.replace(0, parse(this.text));
  }
}
