// The conversation stays at its end until the reader goes up. Nothing here reads the layout while an answer grows: the end is found by an
// observer that is called once the layout is known, and a scroll event comes before a frame changes anything.

import { $ } from "./dom.js";

/** More than any conversation is high, in pixels. The browser stops at the end. */
const END = 1e8;

const scroller = $("scroll");
let follows = true;
const atEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;

/** Whether the end is followed. */
export const isFollowed = () => follows;

/** Goes to the end and follows it from now on. */
export function toEnd() {
  follows = true;
  scroller.scrollTop = END;
  $("latest").hidden = true;
}

/** Does something that may move what is shown. A reader who is not at the end stays at the same height. */
export function inPlace(action) {
  const [followed, at] = [follows, scroller.scrollTop];
  action();
  if (!followed) scroller.scrollTop = at;
}

export function startScroll() {
  let before = 0;
  scroller.addEventListener("scroll", () => {
    const at = scroller.scrollTop;
    // Text that grows moves the end away; only the reader goes up.
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
