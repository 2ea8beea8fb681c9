// Layers with experts: chooses between all kernels. Plain C++.
#include "choose.h"

#include <algorithm>

namespace pen {

namespace {

constexpr KernelRow<ExpertKernel> TABLE[EXPERT_KERNELS] = {
    {ExpertKernel::FEW, "experts/decode.cuh", "1 to 8 rows with at most 128 choices, unless many rows share large experts",
     "three kernels instead of six, and each expert is read once"},
    {ExpertKernel::ROWS, "experts/rows.cuh", "sm_90a: groups of 16 choices and more that fill half of the device, 449 columns and more",
     "warpgroup products whose warps share x"},
    {ExpertKernel::BATCH, "experts/experts.cuh", "everything else",
     "each warp streams one slice, with any number of choices per group on any device"},
};

ExpertPlan divide(const Matrix& w, int columns, int rows) {
  ExpertPlan plan{};
  plan.columns = columns, plan.x_rows = rows;
  plan.x_at = int(round_up(partial_bytes(columns), 128));
  plan.x_stride = ceil_div(w.k_tiles(), SLICES) * K_TILE * 2 + 16;
  plan.bytes = plan.x_at + size_t(SLICES) * rows * plan.x_stride;
  return plan;
}

}  // namespace

const KernelRow<ExpertKernel>& expert_row(ExpertKernel kernel) { return row_of(TABLE, kernel); }

int least_group(const ProductDevice& device, const Matrix& w) {
  return w.k_tiles() >= SLICES && device.warpgroups ? MIN_WIDE_GROUP : MIN_GROUP;
}

ExpertKernel choose_groups(const ProductDevice& device, const Matrix& w, int group, int num_groups) {
  if (group < MIN_WIDE_GROUP || least_group(device, w) < MIN_WIDE_GROUP) return ExpertKernel::BATCH;
  // Blocks take many row tiles, so the tiles of a few heads would occupy too few multiprocessors.
  const int units = num_groups * ceil_div(w.tiles(), 4 * expert_warpgroups(group / 8));
  return 2 * units >= device.multiprocessors ? ExpertKernel::ROWS : ExpertKernel::BATCH;
}

StackPlan choose_stack(const ProductDevice& device, const Matrix& w, int rows, int heads) {
  constexpr int FEW = 16, LARGE = 64;
  Matrix all = w;
  all.rows *= heads;
  // Measured: above sixteen rows, one product is faster.
  const bool whole = rows > FEW && takes_stack(device, all, heads);
  // All heads have as many rows, so the size of the groups depends on the kernels alone.
  if (least_group(device, w) == MIN_GROUP || rows <= MIN_GROUP) return {whole, Groups(rows * heads, heads, rows, MIN_GROUP).size};
  // Measured on an H100: if wide groups would be too few, small groups use more multiprocessors.
  const ExpertKernel kernel = choose_groups(device, w, LARGE, ceil_div(rows, LARGE) * heads);
  return {whole, rows > MIN_WIDE_GROUP && kernel == ExpertKernel::ROWS ? LARGE : MIN_WIDE_GROUP};
}

FewExpertsPlan plan_few(const DeviceShape& device, const ExpertShape& shape) {
  const int rows = shape.num_rows, all = rows * (shape.used + (shape.shared ? 1 : 0)), up_tiles = all * shape.gate_up.tiles();
  FewExpertsPlan plan{};
  plan.up_blocks = std::min(up_tiles, device.multiprocessors * UP_EACH);
  plan.down_blocks = std::min(shape.down.tiles(), device.multiprocessors * DOWN_EACH);
  plan.up = divide(shape.gate_up, std::min(ceil_div(up_tiles, plan.up_blocks) * rows, MAX_UP_COLUMNS), rows);
  plan.down = divide(shape.down, all, all);
  return plan;
}

bool can_few(const DeviceShape& device, const ExpertShape& shape) {
  const bool few = shape.num_rows <= DECODE_ROWS && shape.num_rows * shape.used <= DECODE_CHOICES && shape.num_experts <= DECODE_EXPERTS;
  if (!few || shape.adjugates) return false;
  const FewExpertsPlan plan = plan_few(device, shape);
  return std::max(plan.up.bytes, plan.down.bytes) + FEW_STATIC <= size_t(device.shared_block);
}

ExpertKernel choose_experts(const ProductDevice& device, const ExpertShape& shape) {
  const int choices = shape.num_rows * shape.used;
  const Groups groups(choices, shape.num_experts, shape.adjugates ? choices : shape.num_rows, least_group(device, shape.gate_up));
  const ExpertKernel many = choose_groups(device, shape.gate_up, groups.size, groups.most);
  // Measured on an H100: if rows share many experts and these are large, wide groups are faster for five rows or more.
  constexpr double LARGE = 300e6;  // bytes that all choices would read
  const bool shared = shape.num_rows > 4 && 3 * choices >= 2 * shape.num_experts;
  const bool large = choices * double(shape.gate_up.bytes() + shape.down.bytes()) >= LARGE;
  if ((shared && large && many == ExpertKernel::ROWS) || !can_few(device, shape)) return many;
  return ExpertKernel::FEW;
}

}  // namespace pen
