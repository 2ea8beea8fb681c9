// The tree of a conversation's messages: each message names its parent. An edited message, or another answer, is a sibling of the original.
// `messages` is a Map from ids to messages.

const byTime = (a, b) => a.created - b.created || (a.id < b.id ? -1 : 1);

/** The messages by parent, oldest first. */
export function groups(messages) {
  const all = Map.groupBy(messages.values(), (message) => message.parent);
  for (const siblings of all.values()) siblings.sort(byTime);
  return all;
}

/** The messages from the first one down to `head`. Stops at a missing parent, and at a parent that closes a circle. */
export function path(messages, head) {
  const out = [];
  const seen = new Set();
  for (let message = messages.get(head); message && !seen.has(message.id); message = messages.get(message.parent)) {
    seen.add(message.id);
    out.unshift(message);
  }
  return out;
}

/** The end of the most recently written branch through `id`. */
export function leaf(messages, id) {
  const below = groups(messages);
  const seen = new Set();
  let at = id;
  while (below.has(at) && !seen.has(at)) {
    seen.add(at);
    at = below.get(at).at(-1).id;
  }
  return at;
}
