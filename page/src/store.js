// Stores conversations, their messages and the pictures of these in IndexedDB. Each message is a separate record, and each change of a
// conversation is a transaction that changes only the named fields, so two tabs never overwrite each other's work. The other tabs are
// notified of every change.

const channel = "BroadcastChannel" in window ? new BroadcastChannel("penstock") : null;

const TABLES = ["conversations", "messages", "pictures"];

const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

function openDatabase() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("penstock", 2);
    request.onupgradeneeded = ({ oldVersion }) => {
      const add = (name) => request.result.createObjectStore(name, { keyPath: "id" });
      if (oldVersion < 1) add("conversations");
      if (oldVersion < 1) add("messages").createIndex("conversation", "conversation");
      add("pictures").createIndex("conversation", "conversation");
    };
    request.onsuccess = () => {
      // A later version of the page may want to change the database.
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another tab holds an older database"));
  });
}

/** The same tables in memory, for browsers that store nothing. */
function memory() {
  const table = () => {
    const rows = new Map();
    return {
      get: async (id) => structuredClone(rows.get(id)),
      put: async (row) => rows.set(row.id, structuredClone(row)),
      delete: async (id) => rows.delete(id),
      all: async () => structuredClone([...rows.values()]),
      of: async (conversation) => structuredClone([...rows.values()].filter((row) => row.conversation === conversation)),
      each: async (visit) => [...rows.values()].every((row) => visit(row) !== false),
    };
  };
  const tables = { conversations: table(), messages: table(), pictures: table() };
  return (_mode, work) => work(tables);
}

function indexed(database) {
  const table = (store) => ({
    get: (id) => done(store.get(id)),
    put: (row) => done(store.put(row)),
    delete: (id) => done(store.delete(id)),
    all: () => done(store.getAll()),
    of: (conversation) => done(store.index("conversation").getAll(conversation)),
    async each(visit) {
      const request = store.openCursor(null, "prev");
      for (let cursor = await done(request); cursor; cursor = await done(request)) {
        if (visit(cursor.value) === false) return;
        cursor.continue();
      }
    },
  });
  return (mode, work) => {
    const transaction = database.transaction(TABLES, mode);
    const ended = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error ?? new Error("the browser's storage refused to keep it"));
    });
    const result = work(Object.fromEntries(TABLES.map((name) => [name, table(transaction.objectStore(name))])));
    result.catch(() => transaction.error || transaction.abort());
    return mode === "readonly" ? result : Promise.all([result, ended]).then(([value]) => value);
  };
}

export const storage = { keeps: true };

/** Asks the browser not to evict the stored data when its disk runs short. The browser may decline, and offers this only with HTTPS or on
 * this machine. */
export function persist() {
  navigator.storage?.persist?.().catch(() => {});
}

const opened = openDatabase()
  .then(indexed)
  .catch(() => {
    storage.keeps = false;
    return memory();
  });

async function transact(mode, work) {
  return (await opened)(mode, work);
}

function tell(change) {
  channel?.postMessage(change);
}

export function onChange(listener) {
  channel?.addEventListener("message", (event) => listener(event.data));
}
export { tell };

export const conversations = () => transact("readonly", (tables) => tables.conversations.all());
export const conversation = (id) => transact("readonly", (tables) => tables.conversations.get(id));
export const messages = (ids) => transact("readonly", (tables) => Promise.all(ids.map((id) => tables.messages.get(id))));
export const messagesOf = (id) => transact("readonly", (tables) => tables.messages.of(id));

export const picture = (id) => transact("readonly", (tables) => tables.pictures.get(id));

/** Adds conversations with their messages and pictures, all or none. */
export async function add(entries) {
  await transact("readwrite", async (tables) => {
    for (const { conversation, messages, pictures } of entries) {
      tables.conversations.put(conversation);
      for (const message of messages) tables.messages.put(message);
      for (const picture of pictures) tables.pictures.put(picture);
    }
  });
  tell({ kind: "list" });
}

/** Stores messages of a conversation with their new pictures, and changes some of its fields. Returns false, and stores nothing, if the
 * conversation was deleted. */
export async function save(id, messages, patch = {}, pictures = []) {
  const isKept = await transact("readwrite", async (tables) => {
    const found = await tables.conversations.get(id);
    if (!found) return false;
    tables.conversations.put({ ...found, ...patch });
    for (const message of messages) tables.messages.put(message);
    for (const picture of pictures) tables.pictures.put(picture);
    return true;
  });
  if (isKept) tell({ kind: "saved", conversation: id, messages: messages.map((message) => message.id), patch });
  return isKept;
}

export async function remove(id) {
  await transact("readwrite", async (tables) => {
    for (const table of [tables.messages, tables.pictures]) for (const row of await table.of(id)) table.delete(row.id);
    await tables.conversations.delete(id);
  });
  tell({ kind: "removed", conversation: id });
}

/** Finds conversations by their titles and texts. Returns a Map from ids to an extract of the first matching message, or "" if the title
 * matches. */
export function search(words) {
  const wanted = words.toLowerCase();
  const place = (text) => text?.toLowerCase().indexOf(wanted) ?? -1;
  return transact("readonly", async (tables) => {
    const found = new Map();
    for (const one of await tables.conversations.all()) if (place(one.title) >= 0) found.set(one.id, "");
    await tables.messages.each((message) => {
      const at = place(message.content);
      if (at < 0 || found.has(message.conversation)) return;
      const start = Math.max(0, at - 24);
      found.set(message.conversation, (start ? "…" : "") + message.content.slice(start, at + wanted.length + 60).replace(/\s+/g, " "));
    });
    return found;
  });
}
