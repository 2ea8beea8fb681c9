// Decode steps in loops: up to PEN_MAX_LOOP_STEPS steps that the device runs without the host.
//
// A loop is a graph: a kernel that reads how many steps the host wants, and a WHILE node whose body holds the kernels of `loop_turn` steps.
// The last `advance` of the body decides whether the body runs again. A turn of the WHILE node costs a few microseconds more than what lies
// between two steps, so several steps share it. In exchange, a loop ends only between two turns.
//
// A step's ids go to pinned memory, where the host finds them: a place holds a value that is no id until its id is there. The host ends
// loops early by a word in pinned memory. Whatever the host does, a loop ends after its steps, and the place for its ids holds all of them.
#pragma once

#include "graphs.h"
#include "model.h"

namespace pen {

// The most steps between two points where a loop may end.
constexpr int MAX_LOOP_TURN = 4;
static_assert(PEN_MAX_LOOP_STEPS % MAX_LOOP_TURN == 0, "a loop is whole turns");

// Ids in the place for a loop's results before the device writes them.
constexpr int32_t UNWRITTEN = INT32_MIN;

// The words of a place for results: ids and LoopWords.
size_t result_words(int max_rows, size_t max_batch_rows);
// Tells the device, by the words of a place for results, the most steps of a loop and its number.
void set_words(pen_model& model, InFlight& flight, uint32_t steps, uint32_t number);
// Measures whether the model's steps are as fast in loops, and sets its `loop_turn` accordingly: 0 if it shall have none.
void choose_loops(pen_model& model, const pen_kv& kv, pen_kv_init& init);
// Captures the loops of the shapes that steps have graphs of, until the time or the memory reserved for them is used up.
Captured capture_loops(pen_model& model, const pen_kv& kv);
// The loop of a shape, or one with more room if a capture would hold up a loop in flight. It is captured now if there is none, and empty if
// that fails.
Graph& loop_of(pen_model& model, const pen_kv& kv, const GraphShape& shape);
// Queues the loop of a flight whose rows are in place. If memory to capture or launch it is lacking, it ends before its first step.
void run_loop(pen_model& model, const pen_kv& kv, const GraphShape& shape, InFlight& flight);
// Lets the loops submitted so far end early.
void end_loops(pen_model& model);
// Waits for the next step of a loop. Returns false if the loop has ended before it.
bool await_step(pen_model& model, InFlight& flight);

}  // namespace pen
