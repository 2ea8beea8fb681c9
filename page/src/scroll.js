// Keeps the conversation scrolled to its end until the reader scrolls up. Nothing here reads the layout while an answer grows: an observer
// finds the end once the layout is known, and a scroll event comes before a frame changes anything.

import { $ } from "./dom.js";

/** Larger than the height of any conversation [pixels]. The browser stops at the end. */
const END = 1e8;

const scroller = $("scroll");
let follows = true;
const atEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;

/** Whether the view follows the end. */
export const isFollowed = () => follows;

/** Scrolls to the end and follows it from now on. */
export function toEnd() {
  follows = true;
  scroller.scrollTop = END;
  $("latest").hidden = true;
}

/** Runs a function that may move what is shown. If the reader is not at the end, the view keeps its height. */
export function inPlace(action) {
  const [followed, at] = [follows, scroller.scrollTop];
  action();
  if (!followed) scroller.scrollTop = at;
}

export function startScroll() {
  let before = 0;
  scroller.addEventListener("scroll", () => {
    const at = scroller.scrollTop;
    // Growing text moves the end away. Only the reader scrolls up.
    if (atEnd()) follows = true;
    else if (at < before) follows = false;
    before = at;
    $("latest").hidden = follows;
  });
  const grown = new ResizeObserver(() => {
    if (follows) scroller.scrollTop = END;
    $("latest").hidden = follows || atEnd();
  });
  grown.observe($("log"));
  grown.observe(scroller);
  $("latest").addEventListener("click", () => {
    toEnd();
    $("prompt").focus();
  });
}
