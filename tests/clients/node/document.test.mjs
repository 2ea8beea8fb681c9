// Checks that all Node code in docs/clients.md and docs/anthropic.md works as printed.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { withServer } from "./server.mjs";

const pages = ["clients.md", "anthropic.md"].map((page) => readFile(new URL(`../../../docs/${page}`, import.meta.url), "utf8"));
const document = (await Promise.all(pages)).join("\n");
const pieces = [...document.matchAll(/```js\n(.*?)```/gs)].map(([, code]) => code);
let base;

withServer((url) => {
  base = url;
});

test("the pages have five pieces for Node", () => assert.equal(pieces.length, 5));

for (const [number, code] of pieces.entries()) {
  test(code.split("\n")[0], async () => {
    // The folder is inside this one, so that Node finds the packages.
    const folder = await mkdtemp(join(import.meta.dirname, ".piece-"));
    try {
      const script = join(folder, `${number}.mjs`);
      await writeFile(script, code.replaceAll("http://127.0.0.1:8080", base));
      const { stdout } = await promisify(execFile)(process.execPath, [script], { timeout: 60_000 });
      assert.equal(stdout.trim(), "The capital of France is Paris.");
    } finally {
      await rm(folder, { recursive: true });
    }
  });
}
