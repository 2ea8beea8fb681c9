// When an answer is taken and drawn. What its pieces change is drawn together, and the pause after a frame follows what the whole frame
// took: the scripts, the layout, and what the browser's other threads and processes add, which without a GPU is most of it. So a slow
// machine draws less often and keeps its time for the answer, for the other tabs and for the reader.

/** The pause after a frame, in lengths of that frame: frames take a fifth of the time. */
const PAUSE = 4;
/** How far the text on the screen may be behind what came, in milliseconds, as long as a frame takes at most a third of that. */
const BEHIND = 450;
/** The pause that remains after frames that take too long to keep that, in milliseconds. */
const LEFT = 150;
/** The time in which a frame is shown that keeps the beat of a screen, in milliseconds. Nobody sees then what it cost. The other threads
 * and processes take up to twice as long as its scripts, style, layout and painting here. */
const BEAT = 25;
/** No frame counts as longer, in milliseconds: a tab that was hidden in the meantime has shown its frame late. */
const MAX_COST = 1000;

/** How long nothing is drawn after a frame that cost so much. Both in milliseconds. */
export function pauseAfter(cost) {
  // what came right after the last frame began waits for its rest, for the pause and for the next frame
  return Math.min(PAUSE * cost, Math.max(BEHIND - 2 * cost, LEFT));
}

/** The shortest time between two looks at what has come of an answer, in milliseconds. */
const REST = 30;

const jobs = new Set();
// whether a frame is planned or not over yet; when the next one may begin
let isBusy = false;
let next = 0;
// called when the frame is over
const over = [];

/** Runs `job` with the next frame that is due. A job that waits already is not run twice. */
export function draw(job) {
  jobs.add(job);
  if (!isBusy) plan();
}

/** Forgets a job that waits. */
export function undraw(job) {
  jobs.delete(job);
}

/** Resolves when the next frame is due: what comes before could not be shown earlier, and is taken in one go. In a hidden tab, which has no
 * frames, that is at once. */
export function due() {
  if (document.hidden) return Promise.resolve();
  const rest = performance.now() + REST;
  return new Promise((resolve) => {
    const wait = () => setTimeout(resolve, Math.max(next, rest) - performance.now());
    if (isBusy) over.push(wait);
    else wait();
    // a tab that is hidden in the meantime has no frame
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
  // a message comes once the frame has been painted here, and the next frame begins once this one has gone through the other threads
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
