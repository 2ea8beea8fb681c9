// Blocks of code: highlighted, with the name of the language and a copy button.

import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import dockerfile from "highlight.js/lib/languages/dockerfile";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import kotlin from "highlight.js/lib/languages/kotlin";
import lua from "highlight.js/lib/languages/lua";
import makefile from "highlight.js/lib/languages/makefile";
import php from "highlight.js/lib/languages/php";
import python from "highlight.js/lib/languages/python";
import r from "highlight.js/lib/languages/r";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import swift from "highlight.js/lib/languages/swift";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { copy, icon, make } from "./dom.js";

const languages = { bash, c, cpp, csharp, css, diff, dockerfile, go, ini, java, javascript, json, kotlin, lua, makefile, php, python, r,
  ruby, rust, sql, swift, typescript, xml, yaml };
for (const [name, language] of Object.entries(languages)) hljs.registerLanguage(name, language);

/** Code longer than this is not highlighted [characters]. */
const MAX_HIGHLIGHTED = 60_000;

/** The classes of a scope such as `title.function`, as the library's themes name them. */
const classes = (scope) => scope.split(".").map((part, i) => (i ? part + "_".repeat(i) : "hljs-" + part)).join(" ");

function append(parent, tree) {
  for (const child of tree.children) {
    if (typeof child === "string") parent.append(child);
    else if (!child.scope || child.scope.startsWith("language:")) append(parent, child);
    else append(parent.appendChild(make("span", { className: classes(child.scope) })), child);
  }
}

export function highlight(node, text, language) {
  if (!hljs.getLanguage(language) || text.length > MAX_HIGHLIGHTED) return;
  const tree = hljs.highlight(text, { language, ignoreIllegals: true })._emitter.rootNode;
  node.textContent = "";
  append(node, tree);
}

/** Creates the element of a block of code, and the text node to which more text may be appended. */
export function codeBlock(text, info) {
  const language = (info ?? "").trim().split(/[\s{,:]/)[0].toLowerCase();
  const code = make("code", {}, text);
  const button = make("button", { type: "button", className: "quiet copy", ariaLabel: "Copy the code" }, icon("copy"), "Copy");
  button.addEventListener("click", () => copy(code.textContent, "Code copied"));
  const label = make("span", {}, language.slice(0, 40) || "text");
  const scroller = make("pre", { tabIndex: 0, ariaLabel: "Code" }, code);
  scroller.setAttribute("role", "group");
  return { node: make("div", { className: "code" }, make("div", { className: "code-head" }, label, button), scroller), code, language };
}
