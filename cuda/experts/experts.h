// Feed-forward layers where each row uses a few experts (Shazeer et al. 2017): routing, grouping, products, sums.
//
// The numeric definition:
//   routing    A row's experts are those with the highest ranks, in descending order. Equal ranks are ordered by expert number.
//              A rank is the score. With biases, groups or sigmoids, it is the weight (below) plus the expert's bias.
//   weights    exp(score − highest), divided by the sum over all experts (lane l of a warp adds experts l, l + 32 …, then the lanes add
//              up by a tree) or, with `normalise`, over the row's experts in their order. Sigmoids: 1 / (1 + exp(−score)), with
//              `normalise` divided by the sum over the row's experts. Then factors. Each product is rounded.
//   share      The shared expert's weight: 1 / (1 + exp(−h · shared_router)). The product is summed by lanes and their tree.
//   products   An expert's output is that of a linear layer (linear.h), whose bits do not depend on the other rows.
//   sums       A row adds the experts of each eighth of the ids in the order of their ranks, then the eighths as a tree,
//              ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), then the shared expert. So devices that have some eighths each have whole
//              subtrees. Each product is rounded.
// So nothing depends on how rows are grouped. If a score of a row is not finite, all its weights are NaN.
//
// A *choice* is one use of an expert by a row: choice c is use number c % used of row c / used. Choices of the same expert form groups of a
// fixed number of places. A group may have empty places.
#pragma once

#include "../device/step.h"
#include "../elementwise/activation.h"
#include "../linear/linear.h"
#include "choose.h"

namespace pen {

constexpr int MAX_EXPERTS = 4096;       // two counters per expert must fit into shared memory
constexpr int MAX_USED = 64;            // experts per row: two per lane of a warp
constexpr int MAX_EXPERT_GROUPS = 1024;  // one bit of a word per lane of a warp

enum class Gating : int {
  SOFTMAX,
  SIGMOID,
  SOFTMAX_OF_CHOSEN,  // softmax over the row's experts only
};

struct Routing {
  const float* scores;           // [num_rows, num_experts]
  const uint32_t* slot_mapping;  // [num_rows] NO_SLOT: padding, which chooses nothing
  const __half* h;               // [num_rows, ldh] the layer's input; only with a shared_router
  const float* shared_router;    // [hidden] or null
  int num_rows, num_experts, used, ldh, hidden;
  bool normalise;
  int32_t* chosen;  // [num_rows, used] out: experts, or -1
  float* weights;   // [num_rows, used] out
  float* share;     // [num_rows] out: the shared expert's weight; only with a shared_router
  Gating gating = Gating::SOFTMAX;
  const float* choice_bias = nullptr;    // [num_experts] added to the ranks only, or null
  int groups = 0, groups_used = 0;       // experts come from the groups_used groups whose two best ranks have the highest sums; 0: from all
  float scale = 1.0f;                    // factor of all weights
  const float* output_scales = nullptr;  // [num_experts] factors of the experts' weights, or null
  // If not 0, routes to adjugate experts (GroveMoE), one for each group of this many experts. A row's choices are the adjugates of its
  // min(used, adjugates) best experts, ranked without biases. `used` is already that minimum. An adjugate's weight is that of the expert
  // with its number. A row's weights are scaled to add up to 1.
  int chunk_group = 0;
};

void route(const Launch& launch, const Routing& args);

// The smallest group size for products with such matrices on this device (choose.h).
inline int least_group(const Device& device, const Matrix& w) { return least_group(product_device(device), w); }

struct Grouping {
  const int32_t* chosen;  // [num_choices]
  int num_choices, num_experts;
  int group, max_groups;  // size and most, from Groups
  int32_t* expert_of;  // [max_groups] out: a group's expert, or -1
  int32_t* order;      // [max_groups, group] out: choices, or -1
  int32_t* num_groups;  // out: groups that have choices; these come first
};

void group_choices(const Launch& launch, const Grouping& args);

// Products of groups by their experts' matrices.
struct ExpertLinear {
  // One expert's matrices, which read the same x. `data` is that of a stack of them.
  Matrix w[2];
  int out_offset[2];
  int num_segments;
  const int32_t* expert_of;  // [groups]
  const int32_t* order;      // [groups, group]
  const int32_t* num_groups;  // from Grouping
  int group;                  // places per group: 8, 16, 32, 64 or 128
  const __half* x;           // [rows, ldx], zero beyond the matrix's columns up to a multiple of 64
  int ldx;
  int share;  // choice c reads row c / share of x
  float* out;      // [choices, ldo]
  __half* out16;   // [choices, ldo] if `glu`
  int ldo;
  // If set, out16 = activation(gate + its bias) · (up + its bias), for matrices whose tiles hold both (Placement). Otherwise out = the
  // products.
  bool glu = false;
  Activation activation = Activation::SILU;
  float params[4] = {};                // the activation's
  const float* gate_bias = nullptr;    // [num_experts, ffn] or null
  const float* up_bias = nullptr;
};
void expert_linear(const Launch& launch, const ExpertLinear& args, int num_groups);

// out = activation(gate + its bias) · (up + its bias), or activation(up + its bias) without a gate, for products in memory.
struct ExpertActivate {
  const float* gate_up;  // [num_choices, 2 ffn], or [num_choices, ffn] without a gate
  const int32_t* chosen;  // [num_choices] experts; choices with a negative one are skipped
  const float *gate_bias, *up_bias;  // [num_experts, ffn] or null
  __half* out;  // [num_choices, ldh] out; zero beyond column ffn up to a multiple of 64
  int ffn, ldh;
  bool gated;
  Activation activation;
  float params[4];
};
void expert_activate(const Launch& launch, const ExpertActivate& args, int num_choices);

// out = weight · h for each choice, for architectures that weight an expert's input.
struct WeighInput {
  const __half* h;        // [num_rows, ldh]
  const float* weights;   // [num_rows, used]
  const int32_t* chosen;  // [num_rows, used] choices with a negative expert are skipped
  __half* out;            // [num_rows · used, ld] out; zero beyond column `hidden` up to a multiple of 64
  int hidden, used, ldh, ld;
};
void weigh_input(const Launch& launch, const WeighInput& args, int num_rows);

// sum = Σ factor · weight · (output + bias) + share · shared; out = scale · sum, or out + scale · sum
struct Combine {
  const float* outputs;  // [num_rows, used, hidden] the experts' outputs
  const float* weights;  // [num_rows, used]; null: all 1, because the inputs were weighted
  const float* shared;   // [num_rows, hidden] the shared expert's outputs, or null
  const float* share;    // [num_rows]; null: all 1
  const uint32_t* slot_mapping;  // [num_rows]
  float* out;            // [num_rows, hidden]
  int hidden, used;
  bool add;  // add to what `out` holds
  float scale = 1.0f;
  float factor = 1.0f;                // of the experts' weights
  bool mean_shared = false;           // halve the sum
  const int32_t* chosen = nullptr;    // [num_rows, used]
  int num_experts = 0;
  const float* down_bias = nullptr;   // [num_experts, hidden] or null
};
void combine(const Launch& launch, const Combine& args, int num_rows);

}  // namespace pen
