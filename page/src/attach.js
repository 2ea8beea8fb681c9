// Attachments of a message: texts, and images if the model accepts them.

import { on } from "./bus.js";
import { $, icon, make, toast } from "./dom.js";
import { takesImages } from "./models.js";
import { draftId } from "./threads.js";

const MAX_FILES = 16;
const MAX_BYTES = 1 << 20;
const MAX_IMAGE_BYTES = 8 << 20;

// Attached files by the conversation for which they are drafts.
const drafts = new Map();
export const attached = () => drafts.get(draftId()) ?? [];

export function clearFiles() {
  drafts.delete(draftId());
  show();
}

function show() {
  const files = attached();
  $("files").hidden = !files.length;
  $("files").replaceChildren(...files.map((file) => {
    const button = make("button", { type: "button", className: "quiet", ariaLabel: "Remove " + file.name }, icon("cross"));
    button.addEventListener("click", () => {
      drafts.set(draftId(), attached().filter((other) => other !== file));
      show();
      $("prompt").focus();
    });
    return make("li", {}, file.image ? make("img", { src: file.image, alt: "" }) : icon("file"), make("span", {}, file.name), button);
  }));
  $("composer").dispatchEvent(new Event("files"));
}

function asUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** Converts a file to an attachment. Throws an error that says what is wrong with the file. */
async function read(file) {
  const isImage = /^image\/(png|jpeg|webp|gif)$/.test(file.type);
  if (isImage && !takesImages()) throw new Error("this model takes no images");
  const most = isImage ? MAX_IMAGE_BYTES : MAX_BYTES;
  if (file.size > most) throw new Error(`it is larger than ${most >> 20} MiB`);
  if (isImage) return { name: file.name, image: await asUrl(file) };
  const text = await file.arrayBuffer().then((bytes) => new TextDecoder("utf-8", { fatal: true }).decode(bytes)).catch(() => null);
  if (text === null || text.includes("\0")) throw new Error("it is not a text in UTF-8");
  return { name: file.name, text };
}

async function attach(list) {
  // Another conversation may be shown while a file is read.
  const id = draftId();
  for (const file of list) {
    try {
      const content = await read(file);
      const files = drafts.get(id) ?? [];
      if (files.length >= MAX_FILES) throw new Error(`a message has at most ${MAX_FILES} files`);
      drafts.set(id, [...files, content]);
    } catch (error) {
      toast(`${file.name}: ${error.message}`);
    }
  }
  show();
}

export function startAttachments() {
  on("thread", show);
  $("attach").addEventListener("click", () => {
    // Empty accepts every file. Most text files have no type that all systems know.
    $("pick").accept = "";
    $("pick").click();
  });
  $("pick").addEventListener("change", async () => {
    await attach([...$("pick").files]);
    $("pick").value = "";
    $("prompt").focus();
  });
  $("prompt").addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    attach([...event.clipboardData.files]);
  });
  const stage = $("stage");
  const carries = (event) => event.dataTransfer?.types.includes("Files");
  stage.addEventListener("dragover", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    stage.classList.add("drop");
  });
  stage.addEventListener("dragleave", (event) => !stage.contains(event.relatedTarget) && stage.classList.remove("drop"));
  stage.addEventListener("drop", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    stage.classList.remove("drop");
    attach([...event.dataTransfer.files]);
  });
}
