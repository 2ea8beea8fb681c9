// Provides a running server for a test file: the one that PENSTOCK_URL names, or else a new one.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before } from "node:test";
import { fileURLToPath } from "node:url";

export const model = "smollm2:135m";
/** The model whose template supports tools. */
export const coder = "qwen2.5-coder:0.5b";

async function freePort() {
  const probe = createServer();
  await new Promise((done) => probe.listen(0, "127.0.0.1", done));
  const { port } = probe.address();
  await new Promise((done) => probe.close(done));
  return port;
}

async function start() {
  const binary = process.env.PENSTOCK_BINARY ?? fileURLToPath(new URL("../../../target/release/penstock", import.meta.url));
  const port = await freePort();
  const child = spawn(binary, ["serve", "--port", String(port)], {
    stdio: "ignore",
    env: {
      ...process.env,
      PENSTOCK__SERVER__DEFAULT_MODELS: `${model},${coder}`,
      PENSTOCK__STORAGE__FOLDER: mkdtempSync(join(tmpdir(), "penstock-")),
    },
  });
  const url = `http://127.0.0.1:${port}`;
  for (let tries = 0; tries < 1200; tries++) {
    assert.equal(child.exitCode, null, "serve ended before it was ready");
    const ready = await fetch(`${url}/ready`).catch(() => null);
    if (ready?.status === 200) return { url, child };
    await new Promise((done) => setTimeout(done, 100));
  }
  throw new Error("not ready");
}

/** Calls `use` with the server's URL before the tests of a file, and stops the server after them. */
export function withServer(use) {
  let child;
  before(async () => {
    const running = process.env.PENSTOCK_URL ? { url: process.env.PENSTOCK_URL } : await start();
    child = running.child;
    await use(running.url);
  });
  after(async () => {
    if (!child) return;
    const ended = new Promise((done) => child.on("exit", done));
    child.kill("SIGTERM");
    assert.equal(await ended, 0, "SIGTERM ends the server cleanly");
  });
}
