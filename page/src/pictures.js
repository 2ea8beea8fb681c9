// Pictures of messages. A message names its pictures, and their bytes are rows of their own in the storage. An attachment that is a picture
// is {name, picture: id, width, height [pixels], bytes}.

import { newId } from "./kept.js";
import * as store from "./store.js";

/** Most pictures per message. */
export const MAX_PICTURES = 20;
const MAX_MEBIBYTES = 20;
const MAX_BYTES = MAX_MEBIBYTES << 20;

// A file's first bytes tell its kind, since names and types may be wrong.
const KINDS = [
  ["image/png", /^\x89PNG\r\n\x1a\n/],
  ["image/jpeg", /^\xff\xd8\xff/],
  ["image/webp", /^RIFF[^]{4}WEBP/],
  ["image/gif", /^GIF8[79]a/],
];
export const PICTURE_TYPES = KINDS.map(([type]) => type);
const typeOf = (bytes) => KINDS.find(([, head]) => head.test(String.fromCharCode(...bytes.subarray(0, 12))))?.[0];

/** Whether a file is a picture of a kind that models read. */
export const isPicture = async (file) => Boolean(typeOf(new Uint8Array(await file.slice(0, 12).arrayBuffer())));

export const picturesOf = (message) => message.attachments?.filter((file) => file.picture) ?? [];
export const sizeText = ({ width, height }) => `${width} × ${height}`;

// The bytes of the pictures that this tab has not stored yet, by their attachments.
const unstored = new WeakMap();

/** Loads a picture's bytes into an element. */
function load(image, blob) {
  const url = URL.createObjectURL(blob);
  return new Promise((resolve, reject) => {
    image.onload = resolve;
    image.onerror = () => reject(new Error("the browser cannot read this picture"));
    image.src = url;
  }).finally(() => URL.revokeObjectURL(url));
}

function checkSize(bytes) {
  if (bytes > MAX_BYTES) throw new Error(`it is larger than ${MAX_MEBIBYTES} MiB, the most for a picture`);
}

/** Makes an attachment of a picture's bytes. Throws an error that says what is wrong with them. */
export async function newPicture(name, bytes) {
  const type = typeOf(bytes);
  if (!type) throw new Error("it is not a PNG, JPEG, WebP or GIF picture");
  checkSize(bytes.length);
  const blob = new Blob([bytes], { type });
  const image = new Image();
  await load(image, blob);
  const picture = { name, picture: newId(), width: image.naturalWidth, height: image.naturalHeight, bytes: bytes.length };
  unstored.set(picture, blob);
  return picture;
}

/** Reads a file as an attachment. */
export async function readPicture(file) {
  // Before it is read: a file may be larger than the memory.
  checkSize(file.size);
  return newPicture(file.name, new Uint8Array(await file.arrayBuffer()));
}

async function blobOf(file) {
  const blob = unstored.get(file) ?? (await store.picture(file.picture))?.blob;
  if (!blob) throw new Error(`the picture ${file.name} is no longer in this browser`);
  return blob;
}

/** Shows a picture in an element. If that fails, its text says why. */
export async function showPicture(image, file) {
  try {
    await load(image, await blobOf(file));
  } catch (error) {
    image.replaceWith(error.message);
  }
}

/** The rows of the messages' pictures that are not stored yet. */
export function unstoredRows(conversation, messages) {
  const files = messages.flatMap(picturesOf).filter((file) => unstored.has(file));
  return files.map((file) => ({ id: file.picture, conversation, blob: unstored.get(file) }));
}

/** Forgets the bytes of pictures that are stored now. */
export function areStored(messages) {
  for (const file of messages.flatMap(picturesOf)) unstored.delete(file);
}

function asUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

async function withBytes(file) {
  return file.picture ? { name: file.name, image: await asUrl(await blobOf(file)) } : file;
}

/** The messages with their pictures as `data:` URLs, for requests and files. */
export function inlined(messages) {
  const one = async (message) =>
    picturesOf(message).length ? { ...message, attachments: await Array.fromAsync(message.attachments, withBytes) } : message;
  return Array.fromAsync(messages, one);
}
