// Makes elements node by node. Nothing in this page turns text into HTML, and the content security policy forbids it.

export const $ = (id) => document.getElementById(id);

/** Makes an element with properties and children. A string child becomes a text node. */
export function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";
const ICONS = {
  book: "M5 4h11a3 3 0 0 1 3 3v13H8a3 3 0 0 1-3-3zM5 17a3 3 0 0 1 3-3h11",
  clip: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.5 3.5 0 0 1 5 5l-8.5 8.5a1.7 1.7 0 0 1-2.5-2.5L14.5 7.5",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  cross: "M6 6l12 12M18 6L6 18",
  cube: "M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9",
  dots: "M5 12h.01M12 12h.01M19 12h.01",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  file: "M6 3h8l5 5v13H6zM14 3v5h5",
  image: "M4 5h16v14H4zM4 16l4.5-4.5 4 4 3-3 4.5 4.5M9 9h.01",
  keyboard: "M3 6h18v12H3zM7 10h.01M11 10h.01M15 10h.01M7 14h10",
  left: "M15 6l-6 6 6 6",
  more: "M5 12h10M11 8l4 4-4 4M19 5v14",
  panel: "M4 5h16v14H4zM9.5 5v14",
  pencil: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  plus: "M12 5v14M5 12h14",
  retry: "M4 5v5h5M20 19v-5h-5M5 14a7.5 7.5 0 0 0 13.5 2M19 10A7.5 7.5 0 0 0 5.5 8",
  right: "M9 6l6 6-6 6",
  sliders: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  square: "M7 7h10v10H7z",
  terminal: "M4 17l6-5-6-5M12 19h8",
  tool: "M14 6a4 4 0 0 1 5-1l-3 3 1 2 2 0 2-2a4.5 4.5 0 0 1-6 5l-7 7-3-3 7-7a4 4 0 0 1 2-4z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
  up: "M12 20V5M5 12l7-7 7 7",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
};

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = svg.appendChild(document.createElementNS(SVG, "path"));
  path.setAttribute("d", ICONS[name]);
  return svg;
}

/** A small button below a message: an icon, and a label for screen readers. */
export function quiet(label, name, action) {
  const button = make("button", { type: "button", className: "quiet", title: label, ariaLabel: label }, icon(name));
  button.addEventListener("click", action);
  return button;
}

/** Fills the document's buttons with the icons that they name. */
export function placeIcons() {
  for (const button of document.querySelectorAll("[data-icon]")) button.prepend(icon(button.dataset.icon));
}

const coarse = matchMedia("(pointer: coarse)");
/** Whether this is a touch screen. There Enter starts a new line, because there is no Shift, and a button sends. */
export const isTouch = () => coarse.matches;

/** Whether a key pressed in a field sends its text. */
export const sends = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && !isTouch();

/** Makes a text field as high as its text. */
export function fit(area) {
  area.style.height = "auto";
  area.style.height = area.scrollHeight + 2 + "px";
}

let timer = 0;
export function toast(text) {
  $("toast").textContent = text;
  clearTimeout(timer);
  timer = setTimeout(() => ($("toast").textContent = ""), 4000);
}

export async function copy(text, said) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // The clipboard API needs HTTPS.
    const area = make("textarea", { value: text, className: "away", ariaHidden: "true" });
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    if (!copied) return toast("The browser does not let this page copy");
  }
  toast(said);
}

/** Asks a question in a dialog. Resolves to the text (or true if no text is requested), or to null if the user declines. */
export function question({ text, value, yes }) {
  const dialog = $("question");
  $("question-text").textContent = text;
  $("question-field").hidden = value === undefined;
  $("question-input").value = value ?? "";
  $("question-yes").textContent = yes;
  dialog.returnValue = "";
  dialog.showModal();
  if (value !== undefined) $("question-input").select();
  return new Promise((resolve) => {
    const answered = () => resolve(dialog.returnValue === "yes" ? (value === undefined ? true : $("question-input").value.trim()) : null);
    dialog.addEventListener("close", answered, { once: true });
  });
}
