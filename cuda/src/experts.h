// Experts for forward.cu.
#pragma once

#include "../ops/experts.cuh"
#include "context.h"
#include "penstock.h"

namespace pen {

struct Layer;
struct Step;

// Of the largest step; see ops/experts.cuh for what a choice is.
struct ExpertScratch {
  Buffer scores;             // [rows, experts]
  Buffer chosen, weights;    // [rows, used]
  Buffer share;              // [rows]
  Buffer expert_of, order;   // [groups], [groups, group]
  Buffer gate_up;            // float32 [choices, 2 ffn], where the two are not one matrix
  Buffer hidden;             // float16 [choices, ld]
  Buffer outputs;            // [choices, hidden]
  Buffer shared;             // [rows, hidden]
  int ld = 0;
};
// `rows`: of the largest step, padding included.
size_t expert_scratch_bytes(const pen_model_desc& desc, size_t rows);
void make_expert_scratch(pen_model& model, size_t rows);

// What of a step a layer with experts sees.
struct ExpertStep {
  const uint32_t* slot_mapping;
  int num_rows;
};
// out = Σ weight · expert(h) over each row's experts, and the shared one's; with `add` that is added to `out`. h: scratch.h.
void experts(pen_model& model, const Launch& launch, const Layer& layer, const ExpertStep& step, float* out, bool add);

}  // namespace pen
