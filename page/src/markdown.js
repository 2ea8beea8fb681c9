// Turns Markdown into elements. Each of the parser's tokens becomes a node, and only the kinds listed here are active: a tag or link that a
// model made up stays text. No HTML is ever parsed.

import { Marked } from "marked";
import { codeBlock, highlight } from "./code.js";
import { make } from "./dom.js";
import { formula, rules } from "./math.js";

// A model's line break becomes a line break on the page: small models write poems and lists without the blank lines that Markdown needs.
const marked = new Marked({ gfm: true, breaks: true });
marked.use({ extensions: rules });

export function lex(text) {
  return marked.lexer(text);
}

const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", deg: "°", times: "×", divide: "÷",
  plusmn: "±", hellip: "…", mdash: "—", ndash: "–", larr: "←", rarr: "→", uarr: "↑", darr: "↓", bull: "•", middot: "·", le: "≤", ge: "≥",
  ne: "≠", infin: "∞", alpha: "α", beta: "β", gamma: "γ", delta: "δ", lambda: "λ", mu: "μ", pi: "π", sigma: "σ", omega: "ω", check: "✓" };

function decode(text) {
  return text.replace(/&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,8}));/g, (raw, decimal, hex, name) => {
    if (name) return NAMED[name] ?? raw;
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : "\ufffd";
  });
}

/** Tags without attributes that models use within a line. All others stay text. */
const TAGS = /^<(\/?)(b|i|u|s|em|strong|sub|sup|kbd|mark|small|code)>$/i;

/** The address of a link, or null if a link may not lead there. */
function address(href) {
  return /^(https?:\/\/|mailto:)/i.test(href) && URL.canParse(href) ? href : null;
}

function link(href, ...children) {
  const to = address(href);
  return to ? make("a", { href: to, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children) : make("span", {}, ...children);
}

/** Most open tags within a line. A browser hangs on thousands of nested elements, so deeper tags stay text. */
const MAX_OPEN = 32;

/** Appends the tokens of a line to `parent`. `depth`: number of open tags around them. */
function inline(parent, tokens, depth = 0) {
  // The innermost open tag is last.
  const open = [parent];
  for (const token of tokens ?? []) {
    const at = open.at(-1);
    const inner = depth + open.length;
    const nested = (tag) => inline(at.appendChild(make(tag)), token.tokens, inner);
    switch (token.type) {
      case "strong":
      case "em":
      case "del":
        nested(token.type);
        break;
      case "codespan":
        at.append(make("code", {}, token.text));
        break;
      case "br":
        at.append(make("br"));
        break;
      case "link":
        inline(at.appendChild(link(token.href)), token.tokens, inner);
        break;
      case "image":
        // The content security policy forbids loading from elsewhere.
        at.append(link(token.href, "🖼 " + (token.text || "image")));
        break;
      case "formula":
        at.append(formula(token));
        break;
      case "checkbox":
        break;
      case "html": {
        const tag = TAGS.exec(token.raw.trim());
        if (/^<br\s*\/?>$/i.test(token.raw.trim())) at.append(make("br"));
        else if (tag && !tag[1] && inner <= MAX_OPEN) open.push(at.appendChild(make(tag[2].toLowerCase())));
        else if (tag && at.localName === tag[2].toLowerCase() && open.length > 1) open.pop();
        else at.append(token.raw);
        break;
      }
      default:
        if (token.tokens) inline(at, token.tokens, inner);
        else at.append(token.type === "escape" ? token.text : decode(token.text ?? token.raw));
    }
  }
  return parent;
}

function list(token) {
  const node = make(token.ordered ? "ol" : "ul", token.ordered && token.start !== 1 ? { start: Number(token.start) || 1 } : {});
  for (const item of token.items) {
    const row = node.appendChild(make("li"));
    if (item.task) {
      row.className = "task";
      const ariaLabel = item.checked ? "done" : "to do";
      row.append(make("input", { type: "checkbox", disabled: true, checked: item.checked, ariaLabel }), " ");
    }
    for (const part of item.tokens) {
      if (part.type === "text") inline(row, part.tokens ?? [part]);
      else if (part.type !== "checkbox") row.append(block(part) ?? "");
    }
  }
  return node;
}

function table(token) {
  const cell = (tag) => (one, i) => {
    const node = make(tag, token.align[i] ? { className: token.align[i] } : {});
    return inline(node, one.tokens);
  };
  const head = make("thead", {}, make("tr", {}, ...token.header.map(cell("th"))));
  const body = make("tbody", {}, ...token.rows.map((row) => make("tr", {}, ...row.map(cell("td")))));
  const frame = make("div", { className: "table", tabIndex: 0, ariaLabel: "Table" }, make("table", {}, head, body));
  frame.setAttribute("role", "group");
  return frame;
}

/** Creates the element of a block. Null for blocks that show nothing. */
export function block(token) {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      // The page itself has three levels of headings.
      return inline(make("h" + Math.min(6, token.depth + 3)), token.tokens);
    case "code": {
      const { node, code, language } = codeBlock(token.text, token.lang);
      highlight(code, token.text, language);
      return node;
    }
    case "blockquote":
      return make("blockquote", {}, ...token.tokens.map(block));
    case "list":
      return list(token);
    case "table":
      return table(token);
    case "hr":
      return make("hr");
    case "formula":
      return make("p", {}, formula(token));
    case "html":
      return inline(make("p", { className: "plain" }), [{ ...token, raw: token.raw.trimEnd() }]);
    default:
      return inline(make("p"), token.tokens ?? [token]);
  }
}
