// Checks the decisions about products, experts and heads (choose.h of each) without a GPU: for every shape of the models listed here at 1
// to 4,096 rows, on devices of four kinds, exactly one kernel runs, its limits hold, and the table names it. Prints what runs. Plain C++,
// which tests/it/kernels.rs compiles and runs:
//   c++ -std=c++17 -x c++ cuda/bench/choose.cu cuda/linear/{choose,rows_plan,hopper_plan}.cu cuda/experts/choose.cu -o choose
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string>

#include "../experts/choose.h"
#include "../heads/choose.h"

using namespace pen;

namespace {

struct Named {
  const char* name;
  ProductDevice device;
};
constexpr int MOST_ROWS = 4096;

ProductDevice device_of(int major, int multiprocessors, int shared_block, int shared_multiprocessor, int reserved, int clusters) {
  ProductDevice device;
  device.major = major, device.multiprocessors = multiprocessors, device.shared_block = shared_block;
  device.shared_multiprocessor = shared_multiprocessor, device.shared_reserved = reserved;
  device.warpgroups = clusters > 0, device.clusters = clusters;
  return device;
}

// Record bytes of the formats of files.
Matrix matrix(FormatId format, int rows, int cols) {
  const int bytes = format == FORMAT_H16 ? 2048 : format == FORMAT_Q4 ? 576 : format == FORMAT_Q4_MIN ? 640 : format == FORMAT_Q5 ? 704 :
                    format == FORMAT_Q5_MIN ? 768 : format == FORMAT_Q6 ? 896 : format == FORMAT_MXFP4 ? 576 : 1088;
  return {nullptr, rows, cols, format, bytes};
}

// The products of a model's layers: rows of Q, of K and of V, then of the feed-forward part.
struct Model {
  const char* name;
  FormatId most, value;  // formats of most matrices, and of V and down
  int hidden, q, kv, ffn, vocab;
};
constexpr Model MODELS[] = {
    {"SmolLM2-135M Q4_1", FORMAT_Q4_MIN, FORMAT_Q4_MIN, 576, 576, 192, 1536, 49152},
    {"Qwen2.5-0.5B Q4_K_M", FORMAT_Q5, FORMAT_Q8, 896, 896, 128, 4864, 151936},
    {"Gemma-3-270m Q4_K_M", FORMAT_Q5, FORMAT_Q8, 640, 1024, 256, 2048, 262144},
    {"Llama-3.2-1B F16", FORMAT_H16, FORMAT_H16, 2048, 2048, 512, 8192, 128256},
    {"Llama-3.2-1B Q4_K_M", FORMAT_Q4_MIN, FORMAT_Q6, 2048, 2048, 512, 8192, 128256},
    {"Llama-3.1-8B Q4_K_M", FORMAT_Q4_MIN, FORMAT_Q6, 4096, 4096, 1024, 14336, 128256},
    {"Llama-3.1-8B Q8_0", FORMAT_Q8, FORMAT_Q8, 4096, 4096, 1024, 14336, 128256},
    {"Llama-3.3-70B Q4_K_M", FORMAT_Q4_MIN, FORMAT_Q6, 8192, 8192, 1024, 28672, 128256},
};

int failures = 0;
void expect(bool good, const char* what, const std::string& where, int rows) {
  if (good) return;
  if (failures++ < 20) std::printf("FAIL %s, %d rows: %s\n", where.c_str(), rows, what);
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
  const ProductRow& row = product_row(plan.kernel);
  expect(row.kernel == plan.kernel && row.name && row.when && row.why, "the table does not name the kernel", where, rows);
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

// Checks a product with 1 to MOST_ROWS rows, and prints which kernels it runs.
void check_product(const Named& on, const Model& model, const char* product, std::initializer_list<Matrix> segments, bool has_norm) {
  ProductShape shape;
  for (const Matrix& w : segments) shape.w[shape.num_segments++] = w;
  shape.slab_bytes = size_t(128) << 20;
  const std::string where = std::string(on.name) + ", " + model.name + ", " + product;
  std::string line;
  const char* last = nullptr;
  for (int rows = 1; rows <= MOST_ROWS; rows++) {
    shape.num_tokens = rows;
    shape.normed = false;
    shape.normed = has_norm && takes_norm(on.device, shape);
    const ProductPlan plan = choose(on.device, shape);
    check_plan(on.device, shape, plan, where);
    const char* name = product_row(plan.kernel).name;
    if (last && !std::strcmp(name, last)) continue;
    line += (last ? ", " : "") + std::to_string(rows) + " " + name;
    last = name;
  }
  std::printf("%s: %s\n", where.c_str(), line.c_str());
}

// Layers with experts: formats of gate and up and of down.
struct ExpertModel {
  const char* name;
  FormatId up, down;
  int experts, used, hidden, ffn;
  bool shared;
};
constexpr ExpertModel EXPERT_MODELS[] = {
    {"gpt-oss-20b", FORMAT_MXFP4, FORMAT_MXFP4, 32, 4, 2880, 2880, false},
    {"Qwen3-30B-A3B Q4_K_M", FORMAT_Q4_MIN, FORMAT_Q6, 128, 8, 2048, 768, false},
    {"Qwen3-Next-80B Q4_K_M", FORMAT_Q4_MIN, FORMAT_Q6, 512, 10, 2048, 512, true},
    {"GLM-4.5-Air Q4_K_M", FORMAT_Q4_MIN, FORMAT_Q5, 128, 8, 4096, 1408, true},
};

void check_experts(const Named& on, const ExpertModel& model) {
  const std::string where = std::string(on.name) + ", " + model.name + ", experts";
  ExpertShape shape;
  shape.gate_up = matrix(model.up, 2 * model.ffn, model.hidden), shape.down = matrix(model.down, model.hidden, model.ffn);
  shape.num_experts = model.experts, shape.used = model.used, shape.shared = model.shared;
  std::string line;
  const char* last = nullptr;
  for (int rows = 1; rows <= MOST_ROWS; rows++) {
    shape.num_rows = rows;
    const ExpertKernel kernel = choose_experts(on.device, shape);
    const ExpertRow& row = expert_row(kernel);
    expect(row.kernel == kernel && row.name && row.when && row.why, "the table does not name the kernel", where, rows);
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
    if (last && !std::strcmp(row.name, last)) continue;
    line += (last ? ", " : "") + std::to_string(rows) + " " + row.name;
    last = row.name;
  }
  std::printf("%s: %s\n", where.c_str(), line.c_str());
}

// Checks that every head of a step has a team, and that a team's block has room for its heads.
void check_heads() {
  for (int dim = 1; dim <= HEADS_DIM; dim++) {
    for (int tokens : {1, 3, 64, MOST_ROWS}) {
      const HeadsPlan plan = choose_heads(tokens, 9, dim);
      const size_t teams = plan.wide ? 1 : HEADS_THREADS / WARP;
      expect(plan.wide == (dim > HEADS_WARP_DIM) && plan.bytes == teams * dim * sizeof(float), "a head's place", "heads", tokens);
      expect(plan.blocks * teams >= size_t(tokens) * 9 && (plan.blocks - 1) * teams < size_t(tokens) * 9, "blocks", "heads", tokens);
    }
  }
}

}  // namespace

int main() {
  const Named devices[] = {{"H100", device_of(9, 132, 232448, 233472, 1024, 66)},
                           {"A100", device_of(8, 108, 166912, 167936, 1024, 0)},
                           {"L4", device_of(8, 58, 101376, 102400, 1024, 0)},
                           {"T4", device_of(7, 40, 65536, 65536, 0, 0)}};
  for (const Named& on : devices) {
    for (const Model& m : MODELS) {
      check_product(on, m, "QKV", {matrix(m.most, m.q, m.hidden), matrix(m.most, m.kv, m.hidden), matrix(m.value, m.kv, m.hidden)}, true);
      check_product(on, m, "O", {matrix(m.most, m.hidden, m.q)}, false);
      check_product(on, m, "gate and up", {matrix(m.most, 2 * m.ffn, m.hidden)}, true);
      check_product(on, m, "down", {matrix(m.value, m.hidden, m.ffn)}, false);
      check_product(on, m, "head", {matrix(m.value, m.vocab, m.hidden)}, false);
    }
    for (const ExpertModel& m : EXPERT_MODELS) check_experts(on, m);
  }
  check_heads();
  std::printf("choose: %d failures\n", failures);
  return failures != 0;
}
