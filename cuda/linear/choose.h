// Decides which kernels compute a product: pure functions of its shape and of the device, compiled by a host's compiler, too. The table of
// the kernels is in choose.cu. No decision changes a bit of a product.
#pragma once

#include "../device/kernel_row.h"
#include "../device/known.h"
#include "shape.h"

namespace pen {

// A device as products see it.
struct ProductDevice : DeviceShape {
  bool warpgroups = false;  // it runs the kernels of sm_90a
  int clusters = 0;         // clusters of two blocks of hopper.cuh that run at the same time
};

// The device that stands for an architecture.
inline ProductDevice product_device(const KnownDevice& known) {
  ProductDevice device{known.shape};
  device.warpgroups = known.clusters > 0, device.clusters = known.clusters;
  return device;
}

enum class ProductKernel : int { RING, STREAM, ROWS, BATCH, BLOCKS, PAIR, ANY };
constexpr int PRODUCT_KERNELS = 7;
const KernelRow<ProductKernel>& product_row(ProductKernel kernel);

// --- up to eight tokens: decode.cuh and decode_stream.cuh ---

constexpr int DECODE_TOKENS = 8;
constexpr int NORM_ROWS = 4, NORM_SUMS = 2 * NORM_ROWS * SLICES;  // rows that a block may normalise, and floats for their sums

// Where the fragments of x come from.
enum class Input : int {
  NORM,    // shared memory: p.norm's output for one token, which every block computes itself
  NORMS,   // the same for several tokens at once
  SHARED,  // shared memory: each warp copies its own columns of p.x
  GLOBAL,  // p.x itself
};
// Bytes of records that a warp's ring holds. WHOLE is an upper limit: the ring holds everything that the warp reads. The others are lower
// limits: USUAL for several blocks per multiprocessor, LONG_ROWS for long rows, SHORTEST for devices whose shared memory is too small for
// these. Measured: more requests in flight than the memory needs delay the data that the neighbouring kernels wait for.
enum class RingSize : int { WHOLE = 10240, USUAL = 5120, LONG_ROWS = 8192, SHORTEST = 1024 };
PEN_ANYWHERE constexpr int ring_records(int record_bytes, RingSize size) {
  const int n = int(size) / record_bytes + 1;
  return n < 3 ? 3 : n > 17 ? 17 : n;
}
struct DecodeLinearShared {
  static constexpr int STRIDE = TILE_ROWS + 4;
  static constexpr size_t partial = size_t(SLICES) * DECODE_TOKENS * STRIDE * 4;  // of a group of tiles; there are two
  static constexpr size_t sums = 2 * partial;
  static constexpr size_t x = sums + NORM_SUMS * 4;
};

// Stride of rows of x in shared memory [halves]. It puts eight rows into different banks.
PEN_ANYWHERE constexpr int staged_stride(int cols) { return int(round_up(cols, K_TILE)) + 8; }
// Whether a block copies its x into shared memory instead of reading it as it goes.
bool fits_staged(const DeviceShape& device, int num_tokens, int cols);

constexpr int STREAM_EACH = 3;      // blocks per multiprocessor
constexpr int STREAM_COLUMNS = 16;  // columns of products whose sums are added up together
constexpr int PARTIAL_STRIDE = TILE_ROWS + 4;
// Shared memory for the slices' sums of `columns` columns of products [bytes].
PEN_ANYWHERE constexpr size_t partial_bytes(int columns) { return size_t(SLICES) * columns * PARTIAL_STRIDE * 4; }

// A launch of decode.cuh or decode_stream.cuh. `ring_at`, `ring_bytes` and `bytes`: shared memory.
struct FewPlan {
  Input input = Input::GLOBAL;
  RingSize ring = RingSize::USUAL;
  int blocks = 0, ring_at = 0, ring_bytes = 0, stride = 0;
  size_t bytes = 0;
};

// --- up to 64 tokens: rows.cuh (sm_90a) and batch.cuh ---

constexpr int ROWS_TOKENS = 64;  // most tokens
constexpr int ROWS_WARPGROUPS = 4;  // most warpgroups of a block, not counting the producers'
// Tiles of eight columns in a product of this many tokens.
inline int column_tiles(int num_tokens) { return num_tokens <= 8 ? 1 : num_tokens <= 16 ? 2 : num_tokens <= 32 ? 4 : 8; }
int row_blocks(const ProductShape& shape, int warpgroups);
// Whether a block has registers for the sums of both halves of so many column tiles. Otherwise at least two blocks share a row tile.
PEN_ANYWHERE constexpr bool holds_halves(int column_tiles) { return column_tiles <= 2; }
int least_shares(const ProductShape& shape);

// A block takes four row tiles per warpgroup. Each of `shares` blocks computes some of their slices. `us`: the estimated time.
struct RowsPlan {
  int warpgroups, shares;
  double us;
};
RowsPlan plan_rows(const ProductDevice& device, const ProductShape& shape);
// Whether rows.cuh computes the product.
bool takes_rows(const ProductDevice& device, const ProductShape& shape);
// Workspace for the slices of `tiles` row tiles that blocks share, and 8 `nt` tokens [bytes].
PEN_ANYWHERE constexpr size_t slices_workspace(int tiles, int nt) { return size_t(tiles) * SLICES * nt * WARP * 16; }

// --- any number of tokens: hopper.cuh (sm_90a) and prefill.cuh ---

constexpr int HOPPER_ROW_TILES = 8;  // per block
constexpr int HOPPER_CLUSTER = 2;
constexpr int HOPPER_TOKENS[] = {64, 128};  // a block has one of these numbers
// Up to this many tokens, products take so little time that fetching their code matters: all products of one format share one kernel, and
// sums are written by straight code. Measured: a layer of 8B with 128 rows takes 203 instead of 206 µs, though its products alone take
// longer.
constexpr int HOPPER_FEW_TOKENS = 256;
constexpr int HOPPER_PIECE = 2;  // K tiles of a larger piece
constexpr int BOXED_PARTS = 4;  // parts in which a block's sums are written
// A slice of PARTS_PIECES has enough products to write two parts of sums at a time between them, and one of LONG_PIECES to write one part.
constexpr int PARTS_PIECES = BOXED_PARTS / 2 + 1, LONG_PIECES = BOXED_PARTS + 1;

PEN_ANYWHERE inline int row_groups(const Matrix& w) { return ceil_div(w.tiles(), HOPPER_ROW_TILES); }

// The units of work, which a cluster takes one after the other. A tile is a group of tokens × a pair of groups of eight row tiles. Each of
// the first `whole` tiles is one unit. Each of the others is `shares` units, which take some of the slices each. Units that run at the same
// time share weights in L2.
struct HopperGrid {
  int token_groups = 0, pairs = 0, shares = 1, whole = 0, units = 0;
  bool boxed = false;  // sums of whole tiles can be written as boxes
  HopperGrid() = default;
  HopperGrid(const ProductShape& shape, int tokens) : token_groups(ceil_div(shape.num_tokens, tokens)) {
    int groups = 0;
    for (int i = 0; i < shape.num_segments; i++) groups += row_groups(shape.w[i]);
    pairs = ceil_div(groups, HOPPER_CLUSTER);
    whole = units = tiles();
  }
  PEN_ANYWHERE int tiles() const { return token_groups * pairs; }
  void share(int whole_tiles, int each) { whole = whole_tiles, shares = each, units = whole + (tiles() - whole) * each; }
};
// How blocks of `tokens` tokens spread a product over the device, and the estimated time.
struct HopperPlan {
  int tokens = 0;
  HopperGrid grid;
  double us = 0.0;
  bool pieces = false;  // of HOPPER_PIECE K tiles
};
HopperPlan plan_hopper(const ProductDevice& device, const ProductShape& shape, int tokens);
// The plan with the least estimated time. All segments have one format.
HopperPlan best_plan(const ProductDevice& device, const ProductShape& shape);
// Whether hopper.cuh takes two K tiles at a time. `tokens`: of a block.
bool takes_pieces(const ProductShape& shape, int tokens);

// Two parts of a product in one launch, whose first clusters compute the first part.
struct HopperPair {
  HopperPlan first, second;  // by blocks of the same number of tokens
  int clusters = 0;          // clusters of the first part
  double us = 0.0;
  size_t behind_bytes = 0;  // of the workspace, and row tiles that belong to the first part
  int behind_tiles = 0;
};
// Whether one launch can compute two parts of these formats: a layer's Q and K together with its V, in files of mixed types.
bool has_pair(int first, int second);
HopperPair plan_pair(const ProductDevice& device, const ProductShape& first, const ProductShape& second);

// --- the decision ---

struct ProductPlan {
  ProductKernel kernel;
  FewPlan few;                       // RING, STREAM
  RowsPlan rows{};                   // ROWS
  int row_tiles = 0, columns = 0;    // BATCH: row tiles of a block, and tiles of eight tokens
  int num_parts = 0;                 // BLOCKS, PAIR
  HopperPlan parts[MAX_SEGMENTS];    // BLOCKS
  HopperPair pair;                   // PAIR
  bool swapped = false;              // PAIR: the second part's clusters come first
};
ProductPlan choose(const ProductDevice& device, const ProductShape& shape);
// The same for more tokens than few.
ProductPlan choose_prefill(const ProductDevice& device, const ProductShape& shape);
// Whether one launch computes the products of `count` matrices that lie one below the other as `w`, each with columns of its own.
bool takes_stack(const ProductDevice& device, const Matrix& w, int count);
// Whether a product may compute a norm of its input itself, which is cheaper than a separate kernel for few rows: the kernels' limits, and
// whether a block of this device has room.
bool takes_norm(int num_tokens, int cols);
bool takes_norm(const DeviceShape& device, const ProductShape& shape);

}  // namespace pen
