// Attachments of a message: texts, and pictures if the model reads them.

import { on } from "./bus.js";
import { $, icon, make, toast } from "./dom.js";
import { readsPictures, whoReads } from "./models.js";
import { MAX_PICTURES, PICTURE_TYPES, isPicture, readPicture, showPicture, sizeText } from "./pictures.js";
import { draftId } from "./threads.js";

const MAX_FILES = 16;
const MAX_BYTES = 1 << 20;

// Attached files by the conversation for which they are drafts.
const drafts = new Map();
export const attached = () => drafts.get(draftId()) ?? [];

export function clearFiles() {
  drafts.delete(draftId());
  show();
}

function thumbnail(file) {
  const image = make("img", { alt: "", draggable: false });
  showPicture(image, file);
  return image;
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
    const about = make("span", {}, file.name, file.picture ? make("small", {}, sizeText(file)) : null);
    return make("li", {}, file.picture ? thumbnail(file) : icon("file"), about, button);
  }));
  $("composer").dispatchEvent(new Event("files"));
}

/** Converts a file to an attachment. Throws an error that says what is wrong with the file. */
async function read(file) {
  // A picture of another kind is no text, except for SVG.
  const isImage = file.type.startsWith("image/") && !file.type.startsWith("image/svg");
  if (isImage || (await isPicture(file))) {
    if (!readsPictures()) throw new Error(whoReads());
    return readPicture(file);
  }
  if (file.size > MAX_BYTES) throw new Error(`it is larger than ${MAX_BYTES >> 20} MiB, the most for a text`);
  const text = await file.arrayBuffer().then((bytes) => new TextDecoder("utf-8", { fatal: true }).decode(bytes)).catch(() => null);
  if (text === null || text.includes("\0")) throw new Error("it is neither a text in UTF-8 nor a PNG, JPEG, WebP or GIF picture");
  return { name: file.name, text };
}

/** Adds an attachment to a draft. Throws an error if the draft is full. */
function add(id, file) {
  const files = drafts.get(id) ?? [];
  const pictures = files.filter((one) => one.picture).length;
  if (file.picture && pictures >= MAX_PICTURES) throw new Error(`a message has at most ${MAX_PICTURES} pictures`);
  if (!file.picture && files.length - pictures >= MAX_FILES) throw new Error(`a message has at most ${MAX_FILES} texts`);
  drafts.set(id, [...files, file]);
}

async function attach(list) {
  // Another conversation may be shown while a file is read.
  const id = draftId();
  for (const file of list) {
    try {
      add(id, await read(file));
    } catch (error) {
      toast(`${file.name}: ${error.message}`);
    }
  }
  show();
}

/** The files of a paste that are meant for the message: not those beside a text, of which office programs add a picture. */
function pastedFiles({ target, clipboardData }) {
  const isElsewhere = target !== $("prompt") && target.closest("input, textarea, dialog:modal");
  return isElsewhere || clipboardData.getData("text/plain") ? [] : [...clipboardData.files];
}

function startDrop(stage) {
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

/** Shows whether the chosen model reads pictures. The button stays reachable, so that every user learns why it does nothing. */
function showAbility() {
  const can = readsPictures();
  $("picture").ariaDisabled = can ? null : "true";
  $("picture").title = can ? "Attach pictures" : whoReads();
}

function pick(types) {
  $("pick").accept = types;
  $("pick").click();
}

export function startAttachments() {
  on("thread", show);
  on("models", showAbility);
  // Empty accepts every file. Most text files have no type that all systems know.
  $("attach").addEventListener("click", () => pick(""));
  $("picture").addEventListener("click", () => (readsPictures() ? pick(PICTURE_TYPES.join()) : toast(whoReads())));
  $("pick").addEventListener("change", async () => {
    await attach([...$("pick").files]);
    $("pick").value = "";
    $("prompt").focus();
  });
  document.addEventListener("paste", (event) => {
    const files = pastedFiles(event);
    if (!files.length) return;
    event.preventDefault();
    attach(files);
  });
  startDrop($("stage"));
}
