// The pictures of a sent message: thumbnails, and a dialog that shows one of them large.

import { $, make } from "./dom.js";
import { showPicture, sizeText } from "./pictures.js";

/** Largest sides of a thumbnail, if it is the only one and if there are more [CSS pixels]. */
const [ALONE, TOGETHER] = [256, 128];

async function open(file) {
  const dialog = $("viewer");
  const image = make("img", { alt: file.name, width: file.width, height: file.height });
  $("viewer-title").textContent = `${file.name}, ${sizeText(file)}`;
  $("viewer-image").replaceChildren(image);
  // Its size is known then.
  await showPicture(image, file);
  if (!dialog.open) dialog.showModal();
}

/** A button that shows a picture small and opens it. Its size is known before its bytes are read, so nothing moves. */
export function thumbnail(file, isAlone) {
  const most = isAlone ? ALONE : TOGETHER;
  const scale = Math.min(1, most / file.width, most / file.height);
  const [width, height] = [file.width, file.height].map((side) => Math.max(1, Math.round(side * scale)));
  const image = make("img", { alt: "", width, height, loading: "lazy", draggable: false });
  showPicture(image, file);
  const button = make("button", { type: "button", className: "thumbnail", ariaLabel: `Open ${file.name}, ${sizeText(file)}` }, image);
  button.ariaHasPopup = "dialog";
  button.title = file.name;
  button.addEventListener("click", () => open(file));
  return button;
}

export function startGallery() {
  const dialog = $("viewer");
  // A click beside the picture closes it.
  dialog.addEventListener("click", ({ target }) => [dialog, $("viewer-image")].includes(target) && dialog.close());
  dialog.addEventListener("close", () => $("viewer-image").replaceChildren());
}
