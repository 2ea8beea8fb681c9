// Decides how heads are finished: a pure function, compiled by a host's compiler, too.
//
//   kernel                             when                           why
//   finish_heads_kernel<WARP>          up to HEADS_WARP_DIM elements  a warp holds a head, and needs no barrier
//   finish_heads_kernel<HEADS_THREADS> longer heads                   a block's threads have few enough elements each
#pragma once

#include "../device/numbers.h"

namespace pen {

constexpr int HEADS_DIM = 1024;  // longest head
constexpr int HEADS_THREADS = 128;  // threads of a block
constexpr int HEADS_WARP_DIM = 256;  // longer heads take a block each

struct HeadsPlan {
  bool wide;  // a block per head
  unsigned blocks;
  size_t bytes;  // shared memory
};
inline HeadsPlan choose_heads(int num_tokens, int num_heads, int dim) {
  const bool wide = dim > HEADS_WARP_DIM;
  const int teams = wide ? 1 : HEADS_THREADS / WARP;
  const long long items = static_cast<long long>(num_tokens) * num_heads;
  return {wide, static_cast<unsigned>((items + teams - 1) / teams), sizeof(float) * teams * dim};
}

}  // namespace pen
