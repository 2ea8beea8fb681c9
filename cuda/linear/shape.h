// The shape of a product, from which choose.cu decides which kernel computes it. Also compiled by the host's compiler.
#pragma once

#include "../quant/matrix.h"

namespace pen {

constexpr int SLICES = 8, HALF = SLICES / 2;
// Products with fewer K tiles are not added in halves: hopper.cuh would take 9 % longer with 64 K tiles, because it writes two sums.
constexpr int HALVES_K_TILES = 128;
// The first K tile of slice `s` in a matrix of `k_tiles` K tiles.
PEN_ANYWHERE constexpr int slice_begin(int s, int k_tiles) { return s * k_tiles / SLICES; }

// How the columns of a product are cut into slices, and in which order their sums are added. A long product whose sum several devices can
// share is added in halves: out = (out + (((0 + 1) + 2) + 3)) + (((4 + 5) + 6) + 7), or without the first term. A device that has the
// columns of some slices only has 1, 2 or 4 of them, and adds them in ascending order.
struct Slicing {
  int bits = 3;         // there are 2^bits slices; the others, up to SLICES, are empty
  bool halves = false;  // only products of HALVES_K_TILES K tiles or more
  PEN_ANYWHERE constexpr int count() const { return 1 << bits; }
  PEN_ANYWHERE constexpr int begin(int s, int k_tiles) const { return (s < count() ? s : count()) * k_tiles >> bits; }
};

constexpr int MAX_SEGMENTS = 3;
constexpr int MAX_SHARED_TILES = 1024;

struct ProductShape {
  Matrix w[MAX_SEGMENTS];
  int num_segments = 0, num_tokens = 0;
  bool normed = false;   // every block computes its own input as a norm
  bool boxed = true;     // x is aligned as boxes are
  bool shares = true;    // blocks may share row tiles
  Slicing slicing;
  size_t slab_bytes = 0;  // workspace

  int tiles() const {
    int all = 0;
    for (int i = 0; i < num_segments; i++) all += w[i].tiles();
    return all;
  }
  int k_tiles() const { return w[0].k_tiles(); }
  // Whether several blocks may take some slices each: all slices exist, and none is empty.
  bool can_share() const { return shares && slicing.count() == SLICES && k_tiles() >= SLICES; }
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
