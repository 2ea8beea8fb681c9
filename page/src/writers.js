// Which tab writes which answer. A tab that is closed or reloaded writes nothing any more, and the others see that.

import { onChange, tell } from "./store.js";

/** How long another tab may take to say what it writes, in milliseconds. */
const PATIENCE = 400;
const NAME = "penstock answer ";

// Ids of the messages that this tab writes, and of those that another has said it writes.
const mine = new Set();
const theirs = new Set();

onChange(({ kind, messages }) => {
  if (kind === "mine") messages.forEach((id) => theirs.add(id));
  if (kind !== "who") return;
  const written = messages.filter((id) => mine.has(id));
  if (written.length) tell({ kind: "mine", messages: written });
});

/** Notes that this tab writes a message. Returns what ends that. */
export function writes(id) {
  mine.add(id);
  let release;
  const end = new Promise((resolve) => (release = resolve));
  // The browser lets go of the lock with the tab. There are no locks without HTTPS on another machine.
  navigator.locks?.request(NAME + id, () => end).catch(() => {});
  return () => {
    mine.delete(id);
    release();
  };
}

/** Which of these messages another tab writes: it holds their locks, or it says so. */
export async function whoWrites(ids) {
  theirs.clear();
  tell({ kind: "who", messages: ids });
  await new Promise((resolve) => setTimeout(resolve, PATIENCE));
  const { held = [] } = (await navigator.locks?.query().catch(() => null)) ?? {};
  return new Set([...theirs, ...ids.filter((id) => held.some(({ name }) => name === NAME + id))]);
}
