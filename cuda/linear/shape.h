// What decisions about products know of them. Compiled by a host's compiler, too.
#pragma once

#include "../quant/matrix.h"

namespace pen {

constexpr int SLICES = 8;
// The first K tile of slice `s` in a matrix of `k_tiles` K tiles.
PEN_ANYWHERE constexpr int slice_begin(int s, int k_tiles) { return s * k_tiles / SLICES; }

constexpr int MAX_SEGMENTS = 3;
constexpr int MAX_SHARED_TILES = 1024;

struct ProductShape {
  Matrix w[MAX_SEGMENTS];
  int num_segments = 0, num_tokens = 0;
  bool normed = false;   // every block computes its own input as a norm
  bool boxed = true;     // x is aligned as boxes are
  bool shares = true;    // blocks may share row tiles
  size_t slab_bytes = 0;  // workspace

  int tiles() const {
    int all = 0;
    for (int i = 0; i < num_segments; i++) all += w[i].tiles();
    return all;
  }
  int k_tiles() const { return w[0].k_tiles(); }
};

// Calls f(part, first) for each part of a product that has its own launch, with the number of its first segment. Neighbouring segments of
// one format share a launch.
template <class F>
void each_part(const ProductShape& shape, F f) {
  for (int begin = 0, end; begin < shape.num_segments; begin = end) {
    ProductShape part = shape;
    for (end = begin; end < shape.num_segments && shape.w[end].format == shape.w[begin].format; end++) part.w[end - begin] = shape.w[end];
    part.num_segments = end - begin;
    f(part, begin);
  }
}

}  // namespace pen
