// Formulas: $…$ and \(…\) within a line, $$…$$ and \[…\] on separate lines.

import katex from "katex";

const INLINE = /^\$(?!\s|\$)((?:\\[\s\S]|[^\\$\n])+?)(?<!\s)\$(?!\d)/;
const ROUND = /^\\\(([\s\S]+?)\\\)/;
const DISPLAY = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])/;
const BLOCK = /^ {0,3}(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n+|$)/;

/** The Markdown parser's rules for formulas. A dollar before a space or a digit means money. */
export const rules = [
  {
    name: "formula",
    level: "block",
    start: (text) => text.match(/(?:^|\n) {0,3}(?:\$\$|\\\[)/)?.index,
    tokenizer(text) {
      const found = BLOCK.exec(text);
      if (found) return { type: "formula", raw: found[0], text: found[1] ?? found[2], display: true };
    },
  },
  {
    name: "formula",
    level: "inline",
    start(text) {
      const at = text.search(/\$|\\[([]/);
      return at < 0 ? undefined : at;
    },
    tokenizer(text) {
      const wide = DISPLAY.exec(text);
      if (wide) return { type: "formula", raw: wide[0], text: wide[1] ?? wide[2], display: true };
      const found = ROUND.exec(text) ?? INLINE.exec(text);
      if (found) return { type: "formula", raw: found[0], text: found[1], display: false };
    },
  },
];

/** Removes style attributes, which the content security policy forbids. It permits the style properties that KaTeX sets on elements. */
function withoutStyles(node) {
  if (node.attributes) delete node.attributes.style;
  node.children?.forEach(withoutStyles);
  return node;
}

/** Creates the element of a formula. If KaTeX does not understand the formula, shows its source. */
export function formula({ text, raw, display }) {
  const node = document.createElement("span");
  node.className = display ? "formula wide" : "formula";
  try {
    const options = { displayMode: display, throwOnError: true, trust: false, maxExpand: 500, maxSize: 40 };
    const tree = katex.__renderToDomTree(text.trim(), options);
    node.append(withoutStyles(tree).toNode());
    if (display) node.tabIndex = 0;
  } catch {
    node.className = "formula raw";
    node.textContent = raw.trim();
  }
  return node;
}
