// Checks the decisions about products, experts, attention, heads and sampling (choose.h of each) without a GPU: for every shape of the
// models in models.h at 1 to 4,096 rows, on devices of four kinds, exactly one kernel runs, its limits hold, and the table names it. Prints
// what runs. Plain C++, which tests/it/kernels.rs compiles and runs.
#include <initializer_list>

#include "../experts/choose.h"
#include "../heads/choose.h"
#include "../pictures/choose.h"
#include "../sampling/choose.h"
#include "choose_attention.h"

using namespace pen;

namespace {

// Record bytes of the formats of files.
Matrix matrix(FormatId format, int rows, int cols) {
  const int bytes = format == FORMAT_H16 ? 2048 : format == FORMAT_Q4 ? 576 : format == FORMAT_Q4_MIN ? 640 : format == FORMAT_Q5 ? 704 :
                    format == FORMAT_Q5_MIN ? 768 : format == FORMAT_Q6 ? 896 : format == FORMAT_MXFP4 ? 576 : 1088;
  return {nullptr, rows, cols, format, bytes};
}

void check_few(const ProductDevice& device, const ProductShape& shape, const ProductPlan& plan, const std::string& where) {
  const int rows = shape.num_tokens;
  const FewPlan& few = plan.few;
  expect(rows <= DECODE_TOKENS, "more rows than a block has columns", where, rows);
  expect(few.blocks > 0 && few.blocks <= shape.tiles(), "blocks without a tile", where, rows);
  expect(few.bytes > 0 && few.bytes <= size_t(device.shared_block), "more shared memory than a block may have", where, rows);
  expect(plan.kernel != ProductKernel::STREAM || !shape.normed, "a norm in decode_stream.cuh", where, rows);
  expect((few.input == Input::NORM || few.input == Input::NORMS) == shape.normed, "a norm's input", where, rows);
}

void check_blocks(const ProductDevice& device, const ProductShape& shape, const ProductPlan& plan, const std::string& where) {
  const int rows = shape.num_tokens;
  int segments = 0, parts = 0;
  each_part(shape, [&](const ProductShape& part, int) { segments += part.num_segments, parts++; });
  expect(device.warpgroups, "warpgroup products on a device without them", where, rows);
  expect(segments == shape.num_segments && parts == plan.num_parts, "segments that no part has", where, rows);
  const auto check = [&](const HopperPlan& part) {
    const HopperGrid& grid = part.grid;
    expect(grid.units == grid.whole + (grid.tiles() - grid.whole) * grid.shares && grid.units > 0, "units", where, rows);
    expect(grid.token_groups * part.tokens >= rows, "rows that no block has", where, rows);
    const int shared = (grid.tiles() - grid.whole) * HOPPER_CLUSTER * HOPPER_ROW_TILES;
    expect(grid.shares == 1 || shared <= MAX_SHARED_TILES, "more shared tiles than words", where, rows);
    expect(grid.shares == 1 || slices_workspace(shared, part.tokens / 8) <= shape.slab_bytes, "workspace", where, rows);
  };
  for (int i = 0; i < plan.num_parts; i++) check(plan.parts[i]);
  if (plan.kernel != ProductKernel::PAIR) return;
  expect(parts == 2 && plan.pair.clusters > 0 && plan.pair.clusters < device.clusters, "clusters of a pair", where, rows);
  expect(plan.pair.first.tokens == plan.pair.second.tokens, "a pair by blocks of different sizes", where, rows);
}

void check_plan(const ProductDevice& device, const ProductShape& shape, const ProductPlan& plan, const std::string& where) {
  const int rows = shape.num_tokens;
  const KernelRow<ProductKernel>& row = product_row(plan.kernel);
  expect_row(row, plan.kernel, where, rows);
  switch (plan.kernel) {
    case ProductKernel::RING:
    case ProductKernel::STREAM: return check_few(device, shape, plan, where);
    case ProductKernel::ROWS:
      expect(device.warpgroups && rows <= ROWS_TOKENS && !shape.normed, "rows.cuh", where, rows);
      expect(plan.rows.warpgroups >= 1 && plan.rows.warpgroups <= ROWS_WARPGROUPS && SLICES % plan.rows.shares == 0, "shares", where, rows);
      return;
    case ProductKernel::BATCH: return expect(8 * plan.columns >= rows && rows > DECODE_TOKENS, "rows that no block has", where, rows);
    case ProductKernel::BLOCKS:
    case ProductKernel::PAIR: return check_blocks(device, shape, plan, where);
    case ProductKernel::ANY: return expect(!device.warpgroups && rows > ROWS_TOKENS, "prefill.cuh where a better kernel runs", where, rows);
  }
  expect(false, "no kernel", where, rows);
}

// Checks a product with 1 to MOST_ROWS rows. Returns which kernels run.
Line check_product(const ProductDevice& device, const std::string& where, std::initializer_list<Matrix> segments, bool has_norm) {
  ProductShape shape;
  for (const Matrix& w : segments) shape.w[shape.num_segments++] = w;
  shape.slab_bytes = size_t(128) << 20;
  Line line;
  for (int rows = 1; rows <= MOST_ROWS; rows++) {
    shape.num_tokens = rows;
    shape.normed = false;
    shape.normed = has_norm && takes_norm(device, shape);
    const ProductPlan plan = choose(device, shape);
    check_plan(device, shape, plan, where);
    line.add(rows, product_row(plan.kernel).name);
  }
  return line;
}

// In some layers of a file, V and down have the format of the other matrices.
void check_products(const Device& on, const RealModel& m) {
  const int q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim, up = m.gated ? 2 * m.ffn : m.ffn;
  for (const FormatId more : {m.more, m.most}) {
    const auto check = [&](const char* product, std::initializer_list<Matrix> segments, bool has_norm) {
      const std::string where = std::string(on.name) + ", " + m.name + ", " + product;
      const Line line = check_product(on.device, where, segments, has_norm);
      if (more == m.more) line.print(where);
    };
    check("QKV", {matrix(m.most, q, m.hidden), matrix(m.most, kv, m.hidden), matrix(more, kv, m.hidden)}, true);
    check("down", {matrix(more, m.hidden, m.ffn)}, false);
    if (more == m.more) {
      check("O", {matrix(m.most, m.hidden, q)}, false);
      check("gate and up", {matrix(m.most, up, m.hidden)}, true);
      check("head", {matrix(more, m.vocab, m.hidden)}, false);
    }
    if (m.more == m.most) return;
  }
}

void check_experts(const Device& on, const ExpertModel& model) {
  const std::string where = std::string(on.name) + ", " + model.name + ", experts";
  ExpertShape shape;
  shape.gate_up = matrix(model.up, 2 * model.ffn, model.hidden), shape.down = matrix(model.down, model.hidden, model.ffn);
  shape.num_experts = model.experts, shape.used = model.used, shape.shared = model.shared;
  Line line;
  for (int rows = 1; rows <= MOST_ROWS; rows++) {
    shape.num_rows = rows;
    const ExpertKernel kernel = choose_experts(on.device, shape);
    const KernelRow<ExpertKernel>& row = expert_row(kernel);
    expect_row(row, kernel, where, rows);
    if (kernel == ExpertKernel::FEW) {
      const FewExpertsPlan plan = plan_few(on.device, shape);
      const size_t bytes = plan.up.bytes > plan.down.bytes ? plan.up.bytes : plan.down.bytes;
      expect(rows <= DECODE_ROWS && plan.up_blocks > 0 && plan.down_blocks > 0, "few rows", where, rows);
      expect(bytes + FEW_STATIC <= size_t(on.device.shared_block), "more shared memory than a block may have", where, rows);
    } else {
      const int choices = rows * model.used;
      const Groups groups(choices, model.experts, rows, least_group(on.device, shape.gate_up));
      expect(groups.size >= MIN_GROUP && groups.size <= MAX_GROUP && groups.most * groups.size >= choices, "groups", where, rows);
      expect(on.device.warpgroups || kernel == ExpertKernel::BATCH, "warpgroup products on a device without them", where, rows);
    }
    line.add(rows, row.name);
  }
  line.print(where);
}

// Checks that every head of a step has a team, which takes heads of one token, and that a team's block has room for its heads.
void check_heads() {
  for (int dim = 1; dim <= HEADS_DIM; dim++) {
    for (int heads : {9, 16}) {
      for (int tokens : {1, 3, 64, MOST_ROWS}) {
        const HeadsPlan plan = choose_heads(tokens, heads, dim);
        const size_t held = size_t(plan.each) * (plan.wide ? 1 : HEADS_THREADS / WARP), all = size_t(tokens) * heads;
        expect(plan.wide == (dim > HEADS_WARP_DIM) && plan.bytes == held * dim * sizeof(float), "a head's place", "heads", tokens);
        expect(plan.blocks * held >= all && (plan.blocks - 1) * held < all, "blocks", "heads", tokens);
        expect(heads % plan.each == 0 && (plan.each == 1 || !plan.wide), "a team's heads", "heads", tokens);
      }
    }
  }
}

// Checks that heads of every size attend among rows in blocks that have their rows, of which the smallest fit every device unless heads are
// long.
void check_among(const Device& on) {
  for (int dim = 1; dim <= AMONG_DIM; dim++) {
    for (const int longest : {1, 64, 65, MOST_ROWS}) {
      const int rows = among_block_rows(longest, dim, on.device.warpgroups);
      const AmongPlan plan = choose_among(dim, rows);
      expect(plan.wide == (on.device.warpgroups && longest > 64 && dim > 32), "another kernel", on.name, longest);
      expect(plan.dim >= dim && plan.dim % 16 == 0 && plan.warps * 16 * plan.row_tiles == rows, "rows that no warp has", on.name, longest);
      expect(rows > 64 || dim > 80 || plan.bytes <= on.device.shared_block, "more shared memory than a block may have", on.name, longest);
    }
  }
  expect(choose_among(AMONG_DIM + 1, 64).dim == 0, "heads that no kernel takes", on.name, 64);
}

// Checks heads that have a matrix each: every row has a group, and only sm_90a takes the stack as one product.
void check_stack(const Device& on) {
  for (const int heads : {1, 16, 128}) {
    for (int rows = 1; rows <= MOST_ROWS; rows++) {
      const StackPlan plan = choose_stack(on.device, matrix(FORMAT_H16, 512, 128), rows, heads);
      expect(!plan.whole || on.device.warpgroups, "one product of a stack", on.name, rows);
      expect(plan.group >= MIN_GROUP && plan.group <= MAX_GROUP, "rows of a group", on.name, rows);
    }
  }
}

// Checks that the parts of a row's results lie apart and cover its vocabulary.
void check_sampling() {
  for (const RealModel& m : MODELS) {
    for (int rows = 1; rows <= MOST_ROWS; rows *= 4) {
      const SamplePlan plan = choose_sampling(rows, m.vocab, rows > 64);
      expect(m.vocab <= MOST_VOCAB && plan.vocab_tiles * PASS_IDS >= m.vocab, "ids", m.name, rows);
      expect(plan.sum_blocks * SUM_BLOCK >= m.vocab, "ids of sums", m.name, rows);
      expect(plan.drafts == (rows > 64) && plan.accept_blocks * DRAFT_THREADS >= (plan.drafts ? rows : 0), "rows", m.name, rows);
      const size_t ends[] = {plan.keys + size_t(8) * rows * plan.vocab_tiles, plan.sums + size_t(8) * rows * plan.sum_blocks,
                             plan.masses + size_t(8) * rows * EXPONENTS, plan.counts + size_t(4) * rows * EXPONENTS};
      const size_t begins[] = {plan.sums, plan.masses, plan.counts, plan.bytes};
      for (int i = 0; i < 4; i++) expect(ends[i] <= begins[i] && begins[i] % 256 == 0, "parts that overlap", m.name, rows);
    }
  }
}

}  // namespace

int main() {
  for (const KnownDevice& known : KNOWN_DEVICES) {
    const Device on{known.name, product_device(known)};
    for (const RealModel& m : MODELS) {
      const RealModel* first = MODELS;
      while (!first->is_shaped_like(m)) first++;
      if (first != &m) continue;
      check_products(on, m);
      if (m.bidirectional) continue;
      check_attention(on, m);
      check_prompts(on, m);
    }
    for (const ExpertModel& m : EXPERT_MODELS) check_experts(on, m);
    for (const GeneralModel& m : GENERAL_MODELS) check_general(on, m);
    check_stack(on);
    check_among(on);
  }
  check_heads();
  check_sampling();
  std::printf("choose: %d failures\n", failures);
  return failures != 0;
}
