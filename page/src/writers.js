// Tracks which tab writes which answer. A tab that is closed or reloaded stops writing, and the others notice.

import { onChange, tell } from "./store.js";

/** How long another tab may take to report what it writes [ms]. */
const PATIENCE = 400;
const NAME = "penstock answer ";

// Ids of the messages that this tab writes, and of those that another tab has reported.
const mine = new Set();
const theirs = new Set();

onChange(({ kind, messages }) => {
  if (kind === "mine") messages.forEach((id) => theirs.add(id));
  if (kind !== "who") return;
  const written = messages.filter((id) => mine.has(id));
  if (written.length) tell({ kind: "mine", messages: written });
});

/** Records that this tab writes a message. Returns a function that ends the record. */
export function writes(id) {
  mine.add(id);
  let release;
  const end = new Promise((resolve) => (release = resolve));
  // The browser releases the lock with the tab. Over HTTP from another machine there are no locks.
  navigator.locks?.request(NAME + id, () => end).catch(() => {});
  return () => {
    mine.delete(id);
    release();
  };
}

/** Which of these messages another tab writes: it holds their locks, or it reports them. */
export async function whoWrites(ids) {
  theirs.clear();
  tell({ kind: "who", messages: ids });
  await new Promise((resolve) => setTimeout(resolve, PATIENCE));
  const { held = [] } = (await navigator.locks?.query().catch(() => null)) ?? {};
  return new Set([...theirs, ...ids.filter((id) => held.some(({ name }) => name === NAME + id))]);
}
