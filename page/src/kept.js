/** Small values in the browser's storage. Without storage, the page works but forgets them. */
export const kept = {
  get(store, name, otherwise) {
    try {
      return JSON.parse(store.getItem("penstock." + name)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  set(store, name, value) {
    try {
      store.setItem("penstock." + name, JSON.stringify(value));
    } catch {
      // The storage is full or disabled.
    }
  },
};

/** Creates an id that no other tab creates. `crypto.randomUUID` needs HTTPS. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

let last = 0;
/** The time in milliseconds. It is later than every earlier stamp of this tab, so messages can be ordered by it. */
export function stamp() {
  last = Math.max(Date.now(), last + 1);
  return last;
}
