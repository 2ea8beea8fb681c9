// Bundles the page into ../src/api/ops/page, which the server compiles in. With --check, writes nothing and fails if those files differ.

import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "..", "src", "api", "ops", "page");
const modules = join(here, "node_modules");
const read = (...parts) => readFileSync(join(here, ...parts), "utf8");

// KaTeX's font faces that models' formulas use. Other faces fall back to these.
const FONTS = ["AMS-Regular", "Caligraphic-Regular", "Fraktur-Regular", "Main-Bold", "Main-Italic", "Main-Regular",
  "Math-Italic", "Script-Regular", "Size1-Regular", "Size2-Regular", "Size3-Regular", "Size4-Regular", "Typewriter-Regular"];
// The oldest browsers that support everything the page uses (docs/page.md).
const TARGET = ["chrome123", "firefox125", "safari17.5"];

async function script() {
  const { outputFiles } = await build({
    entryPoints: [join(here, "src", "main.js")], bundle: true, minify: true, format: "iife", target: TARGET, write: false,
    legalComments: "none", charset: "utf8", logLevel: "error", absWorkingDir: here,
  });
  return outputFiles[0].contents;
}

/** KaTeX's style without unused font faces and without the formats of old browsers. */
function formulas() {
  const css = readFileSync(join(modules, "katex", "dist", "katex.css"), "utf8");
  return css.replace(/@font-face\s*\{[^}]*\}/g, (face) => {
    const name = /fonts\/KaTeX_([\w-]+)\.woff2/.exec(face)[1];
    return FONTS.includes(name) ? face.replace(/src:[^;}]*/, `src: url(fonts/KaTeX_${name}.woff2) format("woff2")`) : "";
  });
}

async function style() {
  const css = formulas() + readdirSync(join(here, "style")).sort().map((name) => read("style", name)).join("\n");
  return (await transform(css, { loader: "css", minify: true, target: TARGET, charset: "utf8", legalComments: "none" })).code;
}

function licences() {
  const text = ["highlight.js", "katex", "marked"].map((name) => {
    const { version } = JSON.parse(readFileSync(join(modules, name, "package.json"), "utf8"));
    const file = readdirSync(join(modules, name)).find((entry) => /^licen[cs]e/i.test(entry));
    return `${name} ${version}\n\n${readFileSync(join(modules, name, file), "utf8").replace(/\r/g, "").trim()}\n`;
  });
  return "The chat page contains these libraries.\n\n" + text.join("\n----\n\n").replace(/[ \t]+$/gm, "");
}

const files = new Map([
  ["index.html", read("index.html")],
  ["app.js", await script()],
  ["app.css", await style()],
  ["licences.txt", licences()],
  ...FONTS.map((name) => [`fonts/KaTeX_${name}.woff2`, readFileSync(join(modules, "katex", "dist", "fonts", `KaTeX_${name}.woff2`))]),
]);

const listed = () => readdirSync(out, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile())
  .map((entry) => join(entry.parentPath ?? entry.path, entry.name).slice(out.length + 1));
const digest = (data) => createHash("sha256").update(data).digest("hex");

if (process.argv.includes("--check")) {
  const there = new Set(listed());
  const stale = [...files].filter(([name, data]) => !there.has(name) || digest(data) !== digest(readFileSync(join(out, name))));
  const extra = [...there].filter((name) => !files.has(name));
  const wrong = [...stale.map(([name]) => name + " differs"), ...extra.map((name) => name + " is not made by the build")];
  if (wrong.length) {
    console.error(`src/api/ops/page is not what page/ makes: run \`npm ci && npm run build\` in page/\n  ${wrong.join("\n  ")}`);
    process.exit(1);
  }
} else {
  rmSync(out, { recursive: true, force: true });
  mkdirSync(join(out, "fonts"), { recursive: true });
  for (const [name, data] of files) writeFileSync(join(out, name), data);
}
