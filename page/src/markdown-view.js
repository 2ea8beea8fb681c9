// Shows Markdown that grows. Complete blocks are never parsed again, nor are the complete rows of a long list or table. The last block
// keeps the elements that are unchanged, and an open block of code only gets the new text appended. So the work for an answer is
// proportional to its length.

import { codeBlock } from "./code.js";
import { make } from "./dom.js";
import { grow, growChildren } from "./grow.js";
import { block, lex } from "./markdown.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})([^\n`]*)\n/;

function build(token) {
  try {
    return block(token);
  } catch {
    // For example, nested too deeply for the stack.
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

/** Number of rows from which complete rows of a list or table may be cut off. The last two rows stay, because they may continue. */
const MANY = 40;
const KEPT = 2;

/** The element that holds the rows of a list or a table. */
const holder = (node) => (node?.matches("ul, ol") ? node : node?.matches(".table") ? node.querySelector("tbody") : null);

/** The texts of the head and of the rows of a list or a table. */
function parts({ type, raw, items }) {
  if (type === "list") return { head: "", rows: items.map((item) => item.raw) };
  const lines = type === "table" ? raw.match(/[^\n]*\n|[^\n]+$/g) : [];
  return { head: lines.slice(0, 2).join(""), rows: lines.slice(2) };
}

export class MarkdownView {
  constructor(node) {
    this.node = node;
    this.text = "";
    // {raw, node} of each block. Blocks before index `stable` are complete, and so is the text before `offset`.
    this.blocks = [];
    this.stable = 0;
    this.offset = 0;
    // {head, raw, count} of the rows cut off the block at `stable`. They are complete, and `offset` is after them.
    this.cut = null;
    // {code, end} of the block of code that is still open.
    this.open = null;
    // Whether the last piece ended with a carriage return, which is not in `text` yet.
    this.return = false;
  }

  /** Shows a whole text at once. */
  set(text) {
    this.text = text.replace(/\r\n?/g, "\n");
    this.restart();
  }

  /** Appends a piece. */
  push(piece) {
    const line = this.text.lastIndexOf("\n") + 1;
    // A line break may arrive in two pieces.
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

  /** Parses the text after the complete blocks. All new blocks but the last are then complete. */
  grow() {
    const { cut } = this;
    const tokens = parse((cut?.head ?? "") + this.text.slice(this.offset));
    const last = tokens.findLastIndex((token) => token.type !== "space");
    const from = cut ? 1 : 0;
    if (cut && !this.extend(tokens[0])) {
      // The text continues as another kind of block.
      this.offset -= cut.raw.length;
      this.cut = null;
      return this.grow();
    }
    this.openCode(tokens, last);
    this.replace(this.stable + from, tokens.slice(from));
    tokens.slice(0, Math.max(0, last)).forEach((token, i) => {
      this.offset += token.raw.length - (i < from ? cut.head.length : 0);
      this.stable += 1;
      this.cut = null;
    });
    if (last >= 0) this.shorten(tokens[last]);
  }

  /** If the last token is an unfinished block of code, further text goes into it. */
  openCode(tokens, last) {
    const fence = last >= 0 && tokens[last].type === "code" && FENCE.exec(tokens[last].raw);
    if (!fence) return;
    const end = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}[ \\t]*$`, "m");
    const text = tokens[last].raw.slice(fence[0].length);
    if (end.test(text)) return;
    const { node, code } = codeBlock("", fence[2]);
    // The parser removes the last line break.
    code.append(text);
    tokens[last] = { ...tokens[last], node };
    this.open = { code, end };
  }

  /** Cuts the complete rows off a long list or table, so that they are not parsed again. */
  shorten(token) {
    const { head, rows } = parts(token);
    const gone = rows.slice(0, -KEPT).join("");
    if (rows.length < MANY || !token.raw.startsWith(head + gone)) return;
    const { raw, count } = this.cut ?? { raw: head, count: 0 };
    this.offset += gone.length + (this.cut ? 0 : head.length);
    this.cut = { head, raw: raw + gone, count: count + rows.length - KEPT };
    this.blocks[this.stable].isCut = true;
  }

  /** Adds to a block whose first rows are cut off. Returns false if the token is of another kind. */
  extend(token) {
    const old = this.blocks[this.stable];
    const fresh = token && build(token);
    const [to, more] = [holder(old.node), holder(fresh)];
    if (!to || !more || to.nodeName !== more.nodeName) return false;
    growChildren(to, [...more.childNodes], this.cut.count);
    old.raw = this.cut.raw + token.raw.slice(this.cut.head.length);
    return true;
  }

  /** Replaces the blocks from index `from`. Unchanged parts keep their elements. */
  replace(from, tokens) {
    const isSame = (old, token) => old && token && old.raw === token.raw && !old.open && !old.isCut && !token.node;
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

  /** Shows what only the whole text determines, such as links whose addresses are at its end. */
  finish() {
    if (this.return) this.text += "\n";
    this.return = false;
    this.restart();
  }

  /** Parses the whole text. */
  restart() {
    Object.assign(this, { open: null, cut: null, offset: 0, stable: 0 });
    this.replace(0, parse(this.text));
  }
}
