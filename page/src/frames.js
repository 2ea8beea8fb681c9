// Schedules when an answer is taken and drawn. Changes are drawn together, once per frame. The pause after a frame depends on the whole
// frame's cost: the scripts, the layout, and the work of the browser's other threads and processes, which is most of the cost without a
// GPU. So a slow machine draws less often and keeps its time for the answer, for other tabs and for the reader.

/** Pause after a frame, as a multiple of its time: frames take a seventh of the time. */
const PAUSE = 6;
/** Greatest delay of the text on the screen, as long as a frame takes at most a third of this [ms]. */
const BEHIND = 450;
/** Least pause after frames that take too long for that [ms]. */
const LEFT = 150;
/** Greatest time of a frame that keeps up with the screen [ms]. The cost of such a frame is invisible. The other threads and processes take
 * up to twice as long as the scripts, style, layout and painting here. */
const BEAT = 25;
/** Greatest cost that is counted for a frame [ms]. A tab that was hidden in the meantime shows its frame late. */
const MAX_COST = 1000;

/** How long nothing is drawn after a frame with this cost. Both in milliseconds. */
export function pauseAfter(cost) {
  // Data that arrives just after the last frame began waits for the rest of that frame, for the pause and for the next frame.
  return Math.min(PAUSE * cost, Math.max(BEHIND - 2 * cost, LEFT));
}

/** Least time between two looks at new data of an answer [ms]. */
const REST = 30;

const jobs = new Set();
// `isBusy`: a frame is planned or not finished. `next`: when the next frame may begin.
let isBusy = false;
let next = 0;
// Called when the frame is finished.
const over = [];

/** Runs `job` with the next frame. A job that is already waiting runs only once. */
export function draw(job) {
  jobs.add(job);
  if (!isBusy) plan();
}

/** Cancels a waiting job. */
export function undraw(job) {
  jobs.delete(job);
}

/** Resolves when the next frame is due. Data that arrives earlier could not be shown before, and is taken at once then. In a hidden tab,
 * which has no frames, resolves immediately. */
export function due() {
  if (document.hidden) return Promise.resolve();
  const rest = performance.now() + REST;
  return new Promise((resolve) => {
    const wait = () => setTimeout(resolve, Math.max(next, rest) - performance.now());
    if (isBusy) over.push(wait);
    else wait();
    // A tab that becomes hidden has no further frame.
    setTimeout(resolve, MAX_COST);
  });
}

function plan() {
  isBusy = true;
  const pause = next - performance.now();
  if (pause > 0) setTimeout(() => requestAnimationFrame(frame), pause);
  else requestAnimationFrame(frame);
}

const painted = new MessageChannel();

function frame() {
  const start = performance.now();
  const due = [...jobs];
  jobs.clear();
  for (const job of due) {
    try {
      job();
    } catch (error) {
      reportError(error);
    }
  }
  let painting = 0;
  // The message arrives once the frame has been painted here. The next frame begins once this one has passed through the other threads.
  painted.port1.onmessage = () => (painting = performance.now() - start);
  painted.port2.postMessage(null);
  requestAnimationFrame(() => {
    const shown = performance.now() - start;
    const cost = Math.min(MAX_COST, shown, shown <= BEAT && painting ? 3 * painting : shown);
    next = start + cost + pauseAfter(cost);
    isBusy = false;
    if (jobs.size) plan();
    for (const wait of over.splice(0)) wait();
  });
}
