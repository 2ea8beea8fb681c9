// y = W · x for up to 8 tokens, by the definition of linear.h. Like decode.cuh, but weights pass through registers, x is not normalised
// here, and all segments have one format.
#pragma once

#include "epilogue.cuh"
#include "stream.cuh"

namespace pen {

template <class Format>
constexpr int STREAM_PIECE = Format::words >= 16 ? 2 : Format::words > 10 ? 3 : 4;

// Tile `at` of all segments: its segment, and its number within the segment.
struct TilePlace {
  int segment = 0, tile = 0;
  __device__ __forceinline__ TilePlace(const Linear& p, int at) : tile(at) {
    while (segment + 1 < p.num_segments && tile >= p.w[segment].tiles()) tile -= p.w[segment++].tiles();
  }
};

// Grid: (blocks), each with its share of the row tiles of all segments. Shared memory: the sums, then the rows of x, of `stride` halves.
template <class Format>
__global__ void __launch_bounds__(SLICES* WARP, STREAM_EACH) linear_stream_kernel(const __grid_constant__ Linear p, int stride) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto* const partial = reinterpret_cast<float*>(shared);
  auto* const staged = reinterpret_cast<__half*>(shared + partial_bytes(STREAM_COLUMNS));
  let_next_start();
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int tokens = held(p.num_tokens), k_tiles = held(p.w[0].k_tiles()), ldo = held(p.ldo), most = STREAM_COLUMNS / tokens;
  const Epilogue epilogue = Epilogue(held(int(p.epilogue)));
  const bool glu = is_gated(epilogue);
  const int log_rows = glu ? 3 : 4;  // of the outputs per tile
  int total = 0;
  for (int i = 0; i < p.num_segments; i++) total += p.w[i].tiles();
  int first = share_begin(blockIdx.x, total, gridDim.x);
  const int end = share_begin(blockIdx.x + 1, total, gridDim.x);
  const Slice slice(warp, k_tiles, p.slicing);
  const size_t tile_bytes = size_t(k_tiles) * Format::record_bytes;
  TilePlace ahead(p, first);
  const uint8_t* next = p.w[ahead.segment].data + ahead.tile * tile_bytes + slice.begin * Format::record_bytes;
  const auto at = [&] {
    const uint8_t* const here = next;
    next += tile_bytes;
    if (++ahead.tile == p.w[ahead.segment].tiles() && ahead.segment + 1 < p.num_segments) {
      ahead.segment++, ahead.tile = 0;
      next = p.w[ahead.segment].data + slice.begin * Format::record_bytes;
    }
    return here;
  };
  Stream<Format, STREAM_PIECE<Format>> stream(lane, slice.length);
  stream.fill(min(end - first, most), at);
  // Index of output `i` of the tiles that start at `first`. Also computes its tile, token and row. −1: no output.
  const auto place_of = [&](int i, int& column, int& row) {
    row = i & ((1 << log_rows) - 1), column = i >> log_rows;
    const int tile = column / tokens, token = column - tile * tokens;
    const TilePlace here(p, first + tile);
    const int at = (here.tile << log_rows) + row, rows = p.w[here.segment].rows;
    return at < (glu ? rows / 2 : rows) ? token * ldo + p.out_offset[here.segment] + at : -1;
  };
  wait_for_previous();
  for (int n = 0; n < tokens; n++) {
    copy_pieces(StagedRow{staged + n * stride}, p.x + size_t(n) * p.ldx, slice.begin * 8, slice.length * 8, lane);
  }
  __syncwarp();
  // A column of the product without a token repeats the first token's.
  const uint32_t x = shared_of(staged + (lane / 4 < tokens ? lane / 4 : 0) * stride + lane % 4 * 16) + slice.begin * K_TILE * 2;
#pragma unroll 1
  while (first < end) {
    const int units = min(end - first, most), outputs = units * tokens << log_rows;
    int column, row, own = -1;
    if (int(threadIdx.x) < outputs) own = place_of(threadIdx.x, column, row);
    // Requested before the products, because it is needed right after them.
    const float kept = epilogue == Epilogue::ADD && own >= 0 ? p.out[own] : 0.0f;
    float* to = partial + slice_of(warp) * STREAM_COLUMNS * PARTIAL_STRIDE;
    stream.multiply(units, at, [&] { return x; }, [&](const float (&acc)[4]) {
      store_sums(acc, lane, tokens, [&](int n) { return to + n * PARTIAL_STRIDE; });
      to += tokens * PARTIAL_STRIDE;
    });
    if (first + units < end) stream.fill(min(end - first - units, most), at);
    __syncthreads();
    for (int i = threadIdx.x; i < outputs; i += SLICES * WARP) {
      const bool early = i == int(threadIdx.x);
      if (!early) own = place_of(i, column, row);
      if (own < 0) continue;
      const float base = epilogue == Epilogue::ADD && !early ? p.out[own] : kept;
      const float y = sum_slices(partial, STREAM_COLUMNS, column, row, base, p.slicing.halves);
      if (glu) p.out16[own] = gated(y, sum_slices(partial, STREAM_COLUMNS, column, row + 8), epilogue);
      else p.out[own] = y;
    }
    first += units;
    if (first < end) __syncthreads();
  }
}

}  // namespace pen
