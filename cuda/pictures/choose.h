// Decides how rows of a picture encoder attend to each other: pure functions, compiled by a host's compiler, too.
//
//   kernel               when                         why
//   among_wide_kernel    the same on sm_90a, heads    warpgroup products, and tiles of K and V that all warpgroups of a block share
//                        of more than 32 elements
//   among_kernel<D, 2>   spans of more than 64 rows,  a warp's 32 rows share each fragment of K and V, so that shared memory keeps pace
//                        heads of up to 96 elements   with the tensor cores
//   among_kernel<D, 1>   shorter spans, such as       blocks of 64 rows, none of which is padding if a window has 64
//                        windows; longer heads        32 rows of O and S exceed a thread's registers
#pragma once

#include "../device/numbers.h"

namespace pen {

constexpr int AMONG_KEYS = 64;   // keys of a tile
constexpr int AMONG_DIM = 128;   // longest head
constexpr int AMONG_STAGES = 2;  // tiles of K and V in shared memory
constexpr int AMONG_WIDE_STAGES = 3;  // the same of among_wide_kernel
constexpr int AMONG_WIDE_GROUPS = 3;  // warpgroups that compute in its blocks: two make fewer products at once, four lack registers
constexpr int AMONG_WIDE_ROWS = 64 * AMONG_WIDE_GROUPS;

// The sizes of heads for which there are kernels.
constexpr int AMONG_DIMS[] = {32, 64, 80, 96, 128};

// The bytes of a tile's row: an odd number of 16-byte vectors, or a multiple of 128 bytes (attention/tile.cuh).
PEN_ANYWHERE constexpr int among_row_bytes(int dim) { return (dim % 64 == 0 ? dim / 8 : dim / 8 | 1) * 16; }

// The shared memory of among_wide_kernel: tiles of queries, keys and values from a multiple of 1024 on, and barriers of 8 bytes.
PEN_ANYWHERE constexpr int among_wide_bytes(int dim) {
  return 1024 + (AMONG_WIDE_ROWS + 2 * AMONG_WIDE_STAGES * AMONG_KEYS) * dim * 2 + 17 * 8;
}

struct AmongPlan {
  int dim;        // that of the kernel: the heads' own, padded; 0: the heads are too long
  bool wide;      // among_wide_kernel
  int row_tiles;  // tiles of sixteen rows per warp
  int warps;
  int bytes;      // shared memory
};

// The most rows of a block, if the longest span has so many. `warpgroups`: the device runs the kernels of sm_90a.
inline int among_block_rows(int longest, int dim, bool warpgroups) {
  if (longest <= 64) return 64;
  return warpgroups && dim > 32 ? AMONG_WIDE_ROWS : 128;
}

inline AmongPlan choose_among(int dim, int block_rows) {
  AmongPlan plan{};
  for (const int padded : AMONG_DIMS) {
    if (plan.dim == 0 && dim <= padded) plan.dim = padded;
  }
  plan.wide = block_rows == AMONG_WIDE_ROWS;
  if (plan.wide && plan.dim < 64) plan.dim = 64;
  plan.row_tiles = block_rows > 64 && plan.dim <= 96 && !plan.wide ? 2 : 1;
  plan.warps = block_rows / (16 * plan.row_tiles);
  const int bytes = (block_rows + AMONG_STAGES * 2 * AMONG_KEYS) * among_row_bytes(plan.dim);
  plan.bytes = plan.wide ? among_wide_bytes(plan.dim) : bytes;
  return plan;
}

}  // namespace pen
