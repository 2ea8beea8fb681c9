// The messages of a conversation form a tree: each names its parent, and an edited message or another answer is a sibling of the first.
// `messages` is a Map from ids to messages.

const byTime = (a, b) => a.created - b.created || (a.id < b.id ? -1 : 1);

export function children(messages, parent) {
  return [...messages.values()].filter((message) => message.parent === parent).sort(byTime);
}

/** The messages from the first one down to `head`. A parent that is missing or that closes a circle ends the walk. */
export function path(messages, head) {
  const out = [];
  const seen = new Set();
  for (let message = messages.get(head); message && !seen.has(message.id); message = messages.get(message.parent)) {
    seen.add(message.id);
    out.unshift(message);
  }
  return out;
}

/** The end of the branch through `id` that was written last. */
export function leaf(messages, id) {
  const below = new Map();
  for (const message of messages.values()) below.set(message.parent, [...(below.get(message.parent) ?? []), message]);
  const seen = new Set();
  let at = id;
  while (below.has(at) && !seen.has(at)) {
    seen.add(at);
    at = below.get(at).sort(byTime).at(-1).id;
  }
  return at;
}
