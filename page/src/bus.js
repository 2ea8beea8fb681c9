// Events between parts of the page that do not import each other.

const listeners = new Map();

export function on(name, listener) {
  listeners.set(name, [...(listeners.get(name) ?? []), listener]);
}

export function emit(name, ...values) {
  for (const listener of listeners.get(name) ?? []) listener(...values);
}
