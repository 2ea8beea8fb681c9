// Decides which kernels compute general attention, and how they spread a step over blocks: pure functions of its shape and of the device,
// compiled by a host's compiler, too. The table of the kernels is in general_choose.cu. No decision changes a bit of the result.
#pragma once

#include "../device/kernel_row.h"
#include "layout.h"

namespace pen {

constexpr int GENERAL_DIM = 1024;  // longest key and value

// Positions [begin, end) that a row at `position` sees. `last` is position + 1, or the sequence's length if rows are bidirectional.
//   SLIDING    [position + 1 - window, last)
//   CHUNKED    [position / window · window, last)
//   SYMMETRIC  [position - window / 2, min(last, position + window / 2 + 1))
enum class Window : int { SLIDING, CHUNKED, SYMMETRIC };

// Which rows of its run a row of a whole run sees besides: none, all of them, or the later ones.
enum class RunSight : int { CAUSAL, WHOLE, LATER };

struct GeneralShape {
  int num_heads = 0, num_kv_heads = 0, head_dim = 0, value_dim = 0;
  int k_dim = 0, v_dim = 0;  // elements of a page's rows
  uint32_t window = 0;
  Window window_kind = Window::SLIDING;
  bool bidirectional = false;
  bool has_runs = false;    // rows of whole runs see more
  bool biased = false;      // a soft cap, ALiBi or sinks
  bool one_cache = false;   // values are the first elements of their keys
  bool packed_query = true;  // no gaps between the rows of q
  bool wide_query = true;   // q can be read 16 bytes at a time
  bool even_out = true;     // out can be written two elements at a time
  bool boxed = true;        // q and pages can be copied as boxes
  size_t workspace_bytes = 0;
  int num_tokens = 0, num_seqs = 0, max_query = 0, max_context = 0;  // of the step

  int group() const { return num_heads / num_kv_heads; }
};

struct GeneralDevice : DeviceShape {
  bool warpgroups = false;  // it runs the kernels of sm_90a
  int clusters = 0;         // clusters of latent_cluster.cuh that run at the same time
};

// --- any shape: general.cuh ---

constexpr int PIECE = 64;                         // elements: tiles are fetched and multiplied in pieces of [KEYS, PIECE]
constexpr int GENERAL_TEAM = 4;                   // warps that share sixteen rows
constexpr int GENERAL_BUFFERS = 4;                // most buffers of a ring
constexpr int GENERAL_VALUES = 512;               // most elements of the values that a block computes
constexpr int PIECE_BYTES = TileSize<PIECE>::BYTES;  // a piece of K or V
constexpr int QUERY_PIECE_BYTES = PIECE_BYTES / KEYS * ROWS;
constexpr int EXCHANGE_BYTES = KEYS / 16 * WARP * 16 + GENERAL_TEAM * ROWS * 4;  // fragments of P, and the largest scores

// How the host spreads a step over blocks. No bit of the result depends on it.
struct GeneralPlan {
  int width, buffers;   // pieces per buffer, and buffers of the ring
  int rows;             // rows per block
  int row_blocks;       // most row blocks per sequence and K/V head
  int splits;           // blocks that share a context
  int slices;           // blocks that share a row's values, GENERAL_VALUES elements each
  int max_parts;        // most parts that a row sees
  int partial_rows;     // rows that have partial results
  bool by_sequence;     // partial results are stored per sequence of the view, each of which has one row; otherwise per row of the step
  bool shared_values;   // values are read from the tiles of the keys
  bool wide_query;      // q can be read 16 bytes at a time
  bool even_out;        // out can be written two elements at a time
  bool by_tile;         // blocks that share a context leave one result per tile; otherwise one per KV split
  PEN_ANYWHERE int part_tiles() const { return by_tile ? 1 : KV_SPLIT_TILES; }
};

// --- two shapes on sm_90a: latent.cuh and latent_cluster.cuh ---

constexpr int LATENT_DIM = 576;    // elements of a key: 512, and 64 that are rotated
constexpr int LATENT_VALUE = 512;  // a value is the first elements of its key; also the size of long heads
constexpr int LATENT_ROWS = 64;       // rows of a unit
constexpr int LATENT_WARPGROUPS = 2;  // warpgroups that multiply
constexpr int LATENT_THREADS = (LATENT_WARPGROUPS + 1) * 4 * WARP;
constexpr int LATENT_CLUSTER_THREADS = LATENT_WARPGROUPS * 4 * WARP;
constexpr int LATENT_SEQUENCES = 256;  // most sequences of a step whose sequences have several rows
constexpr int RING_BYTES = 128;        // of a Ring
static_assert(LATENT_WARPGROUPS * 4 * WARP == STATE_THREADS && LATENT_WARPGROUPS * STATE_BOXES * BOX_DIM == LATENT_VALUE, "a state");
static_assert(KV_SPLIT_TILES * BOX_DIM == LATENT_VALUE, "a box of values for each block of a cluster");

// The two shapes: latent keys, whose first elements are the values, and long heads with separate values.
struct LatentKeys {
  static constexpr int DIM = LATENT_DIM, BOXES = DIM / BOX_DIM;
  static constexpr bool SEPARATE = false;
};
struct LongHeads {
  static constexpr int DIM = LATENT_VALUE, BOXES = DIM / BOX_DIM;
  static constexpr bool SEPARATE = true;
};

// Two tiles follow the queries: two tiles of keys, of which one is multiplied while the other arrives, or one of keys and one of values.
template <class Shape>
struct LatentShared {
  static constexpr int TILE = Shape::BOXES * STATE_BOX_BYTES;
  static constexpr int tiles = TILE;
  static constexpr int probabilities = tiles + 2 * TILE;  // of a tile: fragments, [KEYS / 16, 4 WARP] of 16 bytes
  static constexpr int rows = probabilities + KEYS / 16 * 4 * WARP * 16;  // [LATENT_ROWS] maximum and sum of that tile
  static constexpr int barriers = rows + LATENT_ROWS * static_cast<int>(ROW_BYTES);
  static constexpr int before = barriers + RING_BYTES;
  static constexpr int sums = before + (LATENT_SEQUENCES + 4) * 4;
  static constexpr int units = sums + LATENT_SEQUENCES / WARP * 4;  // one per warpgroup, 64 bytes each
  static constexpr size_t bytes = 1024 + units + LATENT_WARPGROUPS * 64;
};

// ROW_TILES: one or two row tiles of sixteen rows each.
template <int ROW_TILES>
struct LatentClusterShared {
  static constexpr int ALL_ROWS = ROW_TILES * ROWS, BOX = STATE_BOX_BYTES, QUERY_BOX = ALL_ROWS * BOX_DIM * 2;
  static constexpr int STRIDE = BOX_DIM + 8;  // floats: eight rows fall into different banks
  static constexpr int queries = LatentKeys::BOXES * BOX;
  // Placed after the queries, of which a product reads 64 rows: the parts that blocks have sent, [KV_SPLIT_TILES, ALL_ROWS, STRIDE].
  static constexpr int parts = queries + LatentKeys::BOXES * QUERY_BOX;
  static constexpr int part = ALL_ROWS * STRIDE * 4;
  static constexpr int rows = parts + KV_SPLIT_TILES * part;  // [KV_SPLIT_TILES, ALL_ROWS] maximum and sum
  static constexpr int probabilities = rows + KV_SPLIT_TILES * ALL_ROWS * static_cast<int>(ROW_BYTES);
  static constexpr int barriers = probabilities + ROW_TILES * KEYS / 16 * WARP * 16;
  static constexpr size_t bytes = 1024 + barriers + RING_BYTES;
  static_assert(4 * ROWS * BOX_DIM * 2 <= QUERY_BOX + KV_SPLIT_TILES * part, "rows that a product reads besides");
};

// --- the decision ---

enum class GeneralKernel : int { CLUSTER, LATENT, LONG, ANY };
constexpr int GENERAL_KERNELS = 4;
const KernelRow<GeneralKernel>& general_row(GeneralKernel kernel);

// A launch.
struct GeneralChoice {
  GeneralKernel kernel;
  GeneralPlan plan{};
  int row_tiles = 1;  // CLUSTER, ANY: tiles of ROWS rows of a block
  int value_pieces = 1;  // ANY: pieces of the values for which the kernel is compiled
  int grid[3] = {1, 1, 1};
  int threads = 0;
  size_t bytes = 0;     // shared memory
  int merge_batch = 0;  // partial results that attention_general_merge_kernel requests together; 0: none are left to merge
};
GeneralChoice choose_general(const GeneralDevice& device, const GeneralShape& shape);

// Workspace with which steps of up to num_tokens rows and max_context positions can be split over the context [bytes]. With less, steps are
// correct but slower.
size_t attention_general_workspace(const DeviceShape& device, int num_tokens, int num_heads, int num_kv_heads, int value_dim,
                                   int max_context);

}  // namespace pen
