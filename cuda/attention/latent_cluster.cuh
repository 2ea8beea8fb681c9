// Latent attention of few rows on sm_90a: a cluster of eight blocks for each stretch, one block per tile. Each block multiplies its tile
// with all of the rows, and sends each of the others an eighth of the values' elements, so that every block merges the tiles for its own part.
// The numbers are those of general.cuh.
#pragma once

#include "../device/cluster.cuh"
#include "latent_units.cuh"

namespace pen {

constexpr int LATENT_CLUSTER_THREADS = LATENT_WARPGROUPS * 4 * WARP;
static_assert(STRETCH_TILES * BOX_DIM == LATENT_VALUE, "a box of values for each block");

// Row tiles of sixteen rows each: one or two.
template <int ROW_TILES>
struct LatentClusterShared {
  static constexpr int ALL_ROWS = ROW_TILES * ROWS, BOX = KEYS * BOX_DIM * 2, QUERY_BOX = ALL_ROWS * BOX_DIM * 2;
  static constexpr int STRIDE = BOX_DIM + 8;  // floats: eight rows fall into different banks
  static constexpr int queries = LatentKeys::BOXES * BOX;
  // Behind the queries, since a product reads 64 rows of them: what others have sent, [STRETCH_TILES, ALL_ROWS, STRIDE].
  static constexpr int parts = queries + LatentKeys::BOXES * QUERY_BOX;
  static constexpr int part = ALL_ROWS * STRIDE * 4;
  static constexpr int rows = parts + STRETCH_TILES * part;  // [STRETCH_TILES, ALL_ROWS] maximum and sum
  static constexpr int probabilities = rows + STRETCH_TILES * ALL_ROWS * static_cast<int>(sizeof(float2));
  static constexpr int barriers = probabilities + ROW_TILES * KEYS / 16 * WARP * 16;
  static constexpr size_t bytes = 1024 + barriers + sizeof(Ring);
  static_assert(4 * ROWS * BOX_DIM * 2 <= QUERY_BOX + STRETCH_TILES * part, "rows that a product reads besides");
};

// Grid: (STRETCH_TILES · stretches, row blocks, num_seqs), in clusters along x.
template <int ROW_TILES>
__global__ void __launch_bounds__(LATENT_CLUSTER_THREADS, 1)
    attention_latent_cluster_kernel(const __grid_constant__ GeneralAttention p, const __grid_constant__ StepView step,
                                    const __grid_constant__ GeneralPlan plan, const __grid_constant__ CUtensorMap queries_map,
                                    const __grid_constant__ CUtensorMap keys_map) {
#ifdef PEN_HOPPER_DEVICE
  using Shared = LatentClusterShared<ROW_TILES>;
  enum { KEYS_FULL, QUERIES_FULL = LatentKeys::BOXES / 4 + 1, PARTS_FULL };
  extern __shared__ uint8_t dynamic[];
  let_next_start();
  const uint32_t base = round_up(shared_of(dynamic), 1024);
  uint8_t* const shared = dynamic + (base - shared_of(dynamic));
  uint64_t* const full = reinterpret_cast<Ring*>(shared + Shared::barriers)->full;
  const int rank = blockIdx.x % STRETCH_TILES, stretch = blockIdx.x / STRETCH_TILES;
  const GeneralRows all(p, step, step.sequence(blockIdx.z), 0);
  const int first_row = blockIdx.y * Shared::ALL_ROWS, rows = min(all.count - first_row, Shared::ALL_ROWS);
  const Span seen = all.spans(p, first_row, Shared::ALL_ROWS);
  const Parts stretches(plan, seen);
  const int begin = stretch * STRETCH_TILES, tiles = min(ceil_div(seen.end, KEYS) - begin, STRETCH_TILES), tile = begin + rank;
  const bool mine = rank < tiles;
  if (threadIdx.x == 0) {
    for (int i = 0; i <= PARTS_FULL; ++i) barrier_init(&full[i], 1);
    expect_bytes(&full[PARTS_FULL], max(tiles, 0) * rows * static_cast<int>(sizeof(float2) + BOX_DIM * sizeof(float)));
  }
  cluster_arrive();
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / WARP, 0), lane = threadIdx.x % WARP, warpgroup = warp / 4, row_tile = warp % 4;
  const int num_keys = all.context - tile * KEYS;
  // A warp's boxes, and the barriers that count groups of four.
  const auto fetch_keys = [&] {
    if (!mine || lane != 0) return;
    const Pages pages(KvView{nullptr, nullptr, 0, p.kv.block_size, 1, 1}, step, step.sequence(blockIdx.z), all.context, 0);
    const int halves = num_keys > PAGE_UNIT ? 2 : 1;
    for (int box = warp; box < LatentKeys::BOXES; box += LATENT_CLUSTER_THREADS / WARP) {
      if (box % 4 == 0) expect_bytes(&full[KEYS_FULL + box / 4], halves * min(LatentKeys::BOXES - box, 4) * BOX_BYTES);
      for (int half = 0; half < halves; ++half) {
        copy_box(base + box * Shared::BOX + half * BOX_BYTES, keys_map, box * BOX_DIM, box_row(pages, tile * KEYS + half * PAGE_UNIT),
                 &full[KEYS_FULL + box / 4]);
      }
    }
  };
  // Before the wait, unless the kernels in front write keys of the tile.
  const bool early = (tile + 1) * KEYS <= all.context - all.tokens;
  if (early) fetch_keys();
  wait_for_previous();
  if (!early) fetch_keys();
  if (mine && lane == 0) {
    if (warp == 0) expect_bytes(&full[QUERIES_FULL], LatentKeys::BOXES * Shared::QUERY_BOX);
    for (int box = warp; box < LatentKeys::BOXES; box += LATENT_CLUSTER_THREADS / WARP) {
      copy_box(base + Shared::queries + box * Shared::QUERY_BOX, queries_map, box * BOX_DIM, all.token0 * p.num_heads + first_row,
               &full[QUERIES_FULL]);
    }
  }
  if (mine) {
    const bool active = row_tile < ROW_TILES;
    const uint32_t fragments = base + Shared::probabilities + (row_tile * (KEYS / 16) * WARP + lane) * 16;
    const int row0 = row_tile * ROWS + lane / 4;
    uint32_t probabilities[KEYS / 16][4] = {};
    float maximum[2], sum[2];
    if (warpgroup == 0) {
      float s[KEYS / 8][4];
      barrier_wait(&full[QUERIES_FULL], 0);
      const uint64_t a = tile_descriptor(base + Shared::queries), b = tile_descriptor(base);
      warpgroup_arrive();
#pragma unroll
      for (int k = 0; k < LATENT_DIM / 16; ++k) {
        if (k % 16 == 0) barrier_wait(&full[KEYS_FULL + k / 16], 0);
        wgmma_shared(s, moved(a, (k / 4 * Shared::QUERY_BOX + k % 4 * 32) / 16), moved(b, (k / 4 * Shared::BOX + k % 4 * 32) / 16), k == 0);
      }
      warpgroup_commit();
      warpgroup_wait<0>();
      if (active) {
        const ScoreScale scale(p.scale, 0.0f);
        const Span span[2] = {all.span(p, first_row + row0), all.span(p, first_row + row0 + 8)};
#pragma unroll
        for (int i = 0; i < KEYS / 2; ++i) s[i / 4][i % 4] = held(s[i / 4][i % 4]);
        tile_softmax(probabilities, maximum, s, span, tile, scale.c, lane);
        tile_sums(sum, probabilities);
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k) {
          const uint32_t(&f)[4] = probabilities[k];
          asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(fragments + k * WARP * 16), "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3])
                       : "memory");
        }
      }
    } else {
      barrier_wait(&full[KEYS_FULL], 0), barrier_wait(&full[KEYS_FULL + 1], 0);
      if (num_keys < KEYS) {
        // The scores are computed from the same keys meanwhile, but those of cleared keys are masked.
        clear_keys<LATENT_VALUE, 4 * WARP>(base, num_keys, threadIdx.x % (4 * WARP));
        fence_async_proxy();
      }
    }
    __syncthreads();
    if (warpgroup == 1 && active) {
#pragma unroll
      for (int k = 0; k < KEYS / 16; ++k) {
        uint32_t(&f)[4] = probabilities[k];
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                     : "r"(fragments + k * WARP * 16)
                     : "memory");
      }
    }
    constexpr int BOXES = LATENT_VALUE / BOX_DIM / LATENT_WARPGROUPS;
    float o[BOXES][BOX_DIM / 8][4];
    warpgroup_arrive();
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
      const uint64_t b = transposed_descriptor(base + (warpgroup * BOXES + box) * Shared::BOX, Shared::BOX);
#pragma unroll
      for (int k = 0; k < KEYS / 16; ++k) wgmma<true>(o[box], probabilities[k], moved(b, k * 16 * 128 / 16), k == 0);
    }
    warpgroup_commit();
    cluster_wait();  // the others' barriers are ready
    warpgroup_wait<0>();
    if (active) {
#pragma unroll
      for (int box = 0; box < BOXES; ++box) {
        const int to = warpgroup * BOXES + box;
        const uint32_t barrier = in_block(shared_of(&full[PARTS_FULL]), to);
        const uint32_t place = in_block(base + Shared::parts + rank * Shared::part + (row0 * Shared::STRIDE + lane % 4 * 2) * 4, to);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if (row0 + 8 * h >= rows) continue;
#pragma unroll
          for (int n = 0; n < BOX_DIM / 8; ++n) {
            store_cluster(place + (8 * h * Shared::STRIDE + n * 8) * 4, held(o[box][n][2 * h]), held(o[box][n][2 * h + 1]), barrier);
          }
        }
      }
      if (warpgroup == 0) {
        // Each of a row's four lanes tells two blocks.
#pragma unroll
        for (int i = 0; i < STRETCH_TILES / 4; ++i) {
          const int to = lane % 4 * (STRETCH_TILES / 4) + i;
          const uint32_t barrier = in_block(shared_of(&full[PARTS_FULL]), to);
          const uint32_t place = in_block(base + Shared::rows + (rank * Shared::ALL_ROWS + row0) * static_cast<int>(sizeof(float2)), to);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            if (row0 + 8 * h < rows) store_cluster(place + 8 * h * static_cast<int>(sizeof(float2)), maximum[h], sum[h], barrier);
          }
        }
      }
    }
  } else {
    cluster_wait();
  }
  if (tiles <= 0) return;
  barrier_wait(&full[PARTS_FULL], 0);
  const GeneralPartials partials(p, plan);
  const bool direct = general_direct(plan, stretches);
  const float* const parts = reinterpret_cast<const float*>(shared + Shared::parts);
  const float2* const tile_rows = reinterpret_cast<const float2*>(shared + Shared::rows);
  for (int i = threadIdx.x; i < rows * (BOX_DIM / 4); i += LATENT_CLUSTER_THREADS) {
    const int row = i / (BOX_DIM / 4), column = i % (BOX_DIM / 4) * 4, at = first_row + row, dim = rank * BOX_DIM + column;
    Running running;
    float o[4] = {0.0f, 0.0f, 0.0f, 0.0f}, keep, add;
    for (int t = 0; t < tiles; ++t) {
      const float2 found = tile_rows[t * Shared::ALL_ROWS + row];
      const float4 x = *reinterpret_cast<const float4*>(parts + (t * Shared::ALL_ROWS + row) * Shared::STRIDE + column);
      merge(running, found.x, found.y, keep, add);
      o[0] = merged(o[0], x.x, keep, add), o[1] = merged(o[1], x.y, keep, add);
      o[2] = merged(o[2], x.z, keep, add), o[3] = merged(o[3], x.w, keep, add);
    }
    if (direct) {
      Running whole;
      merge(whole, running.maximum, running.sum, keep, add);
#pragma unroll
      for (float& x : o) x = merged(0.0f, x, keep, add);
      const float inverse = inverse_sum(whole.sum);
      __half2* const out =
          reinterpret_cast<__half2*>(p.out + static_cast<size_t>(all.token(at)) * p.ld_out + all.head(at) * LATENT_VALUE + dim);
      out[0] = finished(o[0], o[1], inverse), out[1] = finished(o[2], o[3], inverse);
    } else if (stretch < Parts(plan, all.span(p, at)).end) {
      const size_t to = partials.at(all, at, blockIdx.z) + stretch;
      if (rank == 0 && column == 0) partials.row[to] = make_float2(running.maximum, running.sum);
      *reinterpret_cast<float4*>(partials.o + to * partials.stride + dim) = make_float4(o[0], o[1], o[2], o[3]);
    }
  }
#endif
}

}  // namespace pen
