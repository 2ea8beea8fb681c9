// Markdown that grows. Blocks that are complete are never parsed again, the last one keeps the elements that are the same, and an open
// block of code only gets the new text. So the work for an answer is in proportion to its length.

import { codeBlock } from "./code.js";
import { make } from "./dom.js";
import { grow } from "./grow.js";
import { block, lex } from "./markdown.js";

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
    // {raw, node} of each block; those before `stable` are complete, and so is the text before `offset`
    this.blocks = [];
    this.stable = 0;
    this.offset = 0;
    // {code, end} of the block of code that is still open
    this.open = null;
    // whether the last piece ended with a carriage return, which is not in `text` yet
    this.return = false;
  }

  /** Shows a whole text at once. */
  set(text) {
    this.text = text.replace(/\r\n?/g, "\n");
    this.open = null;
    this.replace(0, parse(this.text));
  }

  /** Shows a further piece. */
  push(piece) {
    const line = this.text.lastIndexOf("\n") + 1;
    // a line break may come in two pieces
    const whole = (this.return ? "\r" : "") + piece;
    this.return = whole.endsWith("\r");
    const more = (this.return ? whole.slice(0, -1) : whole).replace(/\r\n?/g, "\n");
    this.text += more;
    if (this.open && !this.open.end.test(this.text.slice(line))) {
      this.open.code.append(more);
    } else {
      this.open = null;
      this.grow();
    }
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

  /** Replaces the blocks from the index `from` on. What is the same keeps its elements. */
  replace(from, tokens) {
    const isSame = (old, token) => old && token && old.raw === token.raw && !old.open && !token.node;
    let at = from;
    while (isSame(this.blocks[at], tokens[at - from])) at += 1;
    const [old, ...rest] = this.blocks.splice(at);
    for (const { node } of rest) node?.remove();
    tokens.slice(at - from).forEach((token, i) => {
      const fresh = token.node ?? build(token);
      const grows = i === 0 && fresh && old?.node && !old.open && !token.node;
      const node = grows ? grow(old.node, fresh) : fresh;
      if (node && !grows) this.node.append(node);
      this.blocks.push({ raw: token.raw, node, open: Boolean(token.node) });
    });
    if (old?.node !== this.blocks[at]?.node) old?.node?.remove();
  }

  /** Shows with the whole text what only that tells: links whose addresses stand at its end, for example. */
  finish() {
    if (this.return) this.text += "\n";
    this.return = false;
    this.open = null;
    this.replace(0, parse(this.text));
  }
}
