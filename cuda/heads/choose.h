// Decides how heads are finished: a pure function, compiled by a host's compiler, too.
//
//   kernel                                when                           why
//   finish_heads_kernel<WARP, 1>          up to HEADS_WARP_DIM elements  a warp holds a head, and needs no barrier
//   finish_heads_kernel<WARP, HEADS_EACH> the same, of many tokens       a warp waits for memory once for several heads
//   finish_heads_kernel<HEADS_THREADS, 1> longer heads                   a block's threads have few enough elements each
#pragma once

#include "../device/numbers.h"

namespace pen {

constexpr int HEADS_DIM = 1024;  // longest head
constexpr int HEADS_THREADS = 128;  // threads of a block
constexpr int HEADS_WARP_DIM = 256;  // longer heads take a block each
constexpr int HEADS_EACH = 4;        // heads of a warp, if there are many
constexpr long long HEADS_MANY = 16384;  // heads that fill an H200 about twice

struct HeadsPlan {
  bool wide;  // a block per head
  int each;   // heads of a warp
  unsigned blocks;
  size_t bytes;  // shared memory
};
inline HeadsPlan choose_heads(int num_tokens, int num_heads, int dim) {
  const bool wide = dim > HEADS_WARP_DIM;
  const long long items = static_cast<long long>(num_tokens) * num_heads;
  const int each = !wide && items >= HEADS_MANY && num_heads % HEADS_EACH == 0 ? HEADS_EACH : 1;
  const int in_block = each * (wide ? 1 : HEADS_THREADS / WARP);
  return {wide, each, static_cast<unsigned>((items + in_block - 1) / in_block), sizeof(float) * in_block * dim};
}

}  // namespace pen
