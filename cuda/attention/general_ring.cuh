// Feeds general attention: K and V through a ring of buffers in shared memory, and the queries.
#pragma once

#include "general_rows.cuh"

namespace pen {

// The ring that feeds a block. For each tile it brings the parts of K, then those of V.
struct GeneralRing {
  const GeneralAttention& p;
  const GeneralPlan& plan;
  Pages pages;
  uint32_t base;
  int key_parts, value_parts, first_value;  // first_value: first piece of the slice
  int tile, end_tile, part = 0, slot = 0, read_slot = 0;  // the next part to fetch
  TilePlace place;

  __device__ __forceinline__ GeneralRing(const GeneralAttention& p, const GeneralPlan& plan, const StepView& step, int seq, int context,
                                         int kv_head, int slice, uint32_t base, int first_tile, int end_tile)
      : p(p), plan(plan), pages(KvView{nullptr, nullptr, 0, p.kv.block_size, p.kv.num_kv_heads, 1}, step, seq, context, kv_head),
        base(base), tile(first_tile), end_tile(end_tile) {
    const int values = min(p.value_dim - slice * GENERAL_VALUES, GENERAL_VALUES);
    key_parts = ceil_div(ceil_div(p.head_dim, PIECE), plan.width);
    value_parts = plan.shared_values ? 0 : ceil_div(ceil_div(values, PIECE), plan.width);
    first_value = slice * (GENERAL_VALUES / PIECE);
    place.find(pages, tile);
  }

  // Requests the next part. Every call commits a group.
  __device__ __forceinline__ void fetch() {
    if (tile < end_tile) {
      const bool keys = part < key_parts;
      const __half* from = keys ? p.kv.k : p.kv.v;
      const int row_dim = keys ? p.kv.k_dim : p.kv.v_dim, used = keys ? p.head_dim : p.value_dim;
      const int first = (keys ? part * plan.width : first_value + (part - key_parts) * plan.width) * PIECE;
      const int pieces = min(plan.width, ceil_div(used - first, PIECE));
      const uint32_t to = base + slot * plan.width * PIECE_BYTES;
#pragma unroll 4
      for (int i = threadIdx.x; i < pieces * (KEYS * PIECE / 8); i += blockDim.x) {
        const int piece = i / (KEYS * PIECE / 8), key = i / (PIECE / 8) % KEYS, vector = i % (PIECE / 8);
        const int element = first + piece * PIECE + vector * 8;
        const bool real = key < place.num_keys && element < used;
        const size_t row = key < PAGE_UNIT ? place.low + key : place.high + (key - PAGE_UNIT);
        copy_async(to + piece * PIECE_BYTES + Tile<PIECE>::at(key, vector), real ? from + row * row_dim + element : from, real);
      }
      if (++part == key_parts + value_parts) part = 0, place.find(pages, ++tile);
      if (++slot == plan.buffers) slot = 0;
    }
    copy_commit();
  }
  __device__ __forceinline__ void start() {
    for (int i = 0; i < plan.buffers - 1; ++i) fetch();
  }
  // Makes the next part readable by all warps, and requests another part into the buffer that no warp reads any more.
  __device__ __forceinline__ uint32_t arrive() {
    if (plan.buffers == 1) {
      __syncthreads();
      fetch();
      copies_wait(0);
      __syncthreads();
    } else {
      copies_wait(plan.buffers - 2);
      __syncthreads();
      fetch();
    }
    const uint32_t at = base + read_slot * plan.width * PIECE_BYTES;
    if (++read_slot == plan.buffers) read_slot = 0;
    return at;
  }
};

// Copies a block's query rows into shared memory: [rows / ROWS, pieces, ROWS, PIECE]. Absent rows and elements become zero.
__device__ __forceinline__ void copy_queries(const GeneralAttention& p, const GeneralPlan& plan, const GeneralRows& rows, int first,
                                             uint32_t to) {
  const int pieces = ceil_div(p.head_dim, PIECE), vectors = pieces * (PIECE / 8);
  for (int i = threadIdx.x; i < plan.rows * vectors; i += blockDim.x) {
    const int r = i / vectors, vector = i % vectors, element = vector * 8;
    uint32_t x[4] = {0, 0, 0, 0};
    if (first + r < rows.count && element < p.head_dim) {
      const __half* from = p.q + static_cast<size_t>(rows.token(first + r)) * p.ld_q + rows.head(first + r) * p.head_dim + element;
      if (plan.wide_query) {
        const uint4 four = *reinterpret_cast<const uint4*>(from);
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
      } else {
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          if (element + k < p.head_dim) x[k / 2] |= static_cast<uint32_t>(__half_as_ushort(from[k])) << (k % 2 * 16);
        }
      }
    }
    const uint32_t piece = to + (r / ROWS * pieces + vector / (PIECE / 8)) * QUERY_PIECE_BYTES;
    const uint32_t at = piece + Tile<PIECE>::at(r % ROWS, vector % (PIECE / 8));
    store_vector(at, make_uint4(x[0], x[1], x[2], x[3]));
  }
}

}  // namespace pen
