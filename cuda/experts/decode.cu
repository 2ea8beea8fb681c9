// Launches layers with experts for few rows.
#include "decode.h"

#include <algorithm>

#include "decode.cuh"
#include "rows.h"

namespace pen {

namespace {

constexpr size_t STATIC = round_up(sizeof(Lists) + sizeof(int2[MAX_UP_COLUMNS]), 128);

ExpertPlan divide(const Matrix& w, int columns, int rows) {
  ExpertPlan plan{};
  plan.columns = columns, plan.x_rows = rows;
  plan.x_at = int(round_up(partial_bytes(columns), 128));
  plan.x_stride = ceil_div(w.k_tiles(), SLICES) * K_TILE * 2 + 16;
  plan.bytes = plan.x_at + size_t(SLICES) * rows * plan.x_stride;
  return plan;
}

struct Plans {
  int all, up_tiles, up_blocks, down_blocks;
  ExpertPlan up, down;
  Plans(const Device& device, const ExpertDecode& args) {
    const int rows = args.routing.num_rows;
    all = rows * (args.routing.used + (args.shared_down ? 1 : 0)), up_tiles = all * args.gate_up.tiles();
    up_blocks = std::min(up_tiles, device.multiprocessors * UP_EACH);
    down_blocks = std::min(args.down.tiles(), device.multiprocessors * DOWN_EACH);
    up = divide(args.gate_up, std::min(ceil_div(up_tiles, up_blocks) * rows, MAX_UP_COLUMNS), rows);
    down = divide(args.down, all, all);
  }
  bool fit(const Device& device) const { return std::max(up.bytes, down.bytes) + STATIC <= size_t(device.shared_block); }
};

// Calls f(Format{}) for a format on the host.
template <class F>
void with_host_format(int format, F f) {
  std::apply([&](auto... each) { ((decltype(each)::id == format ? f(each) : void()), ...); }, AllFormats{});
}

template <class Kernel>
void start(const Launch& launch, Kernel kernel, int threads, const ExpertDecode& args, int blocks, const ExpertPlan& plan) {
  launch.device.first_use(kernel, [&] { allow_shared(kernel, int(launch.device.shared_block - STATIC)), prefer_shared(kernel); });
  launch(kernel, dim3(blocks), dim3(threads), plan.bytes, args, plan);
}

}  // namespace

size_t lists_bytes() { return sizeof(Lists); }

bool can_decode(const Device& device, const ExpertDecode& args) {
  const Routing& r = args.routing;
  return r.num_rows <= DECODE_ROWS && r.num_rows * r.used <= DECODE_CHOICES && r.num_experts <= DECODE_EXPERTS && r.chunk_group == 0 &&
         Plans(device, args).fit(device);
}

bool takes_decode(const Device& device, const ExpertDecode& args) {
  const Routing& r = args.routing;
  const int choices = r.num_rows * r.used;
  const Groups groups(choices, r.num_experts, r.num_rows, least_group(device, args.gate_up));
  // Measured on an H100: if rows share many experts and these are large, wide groups are faster for five rows or more.
  constexpr double LARGE = 300e6;  // bytes that all choices would read
  const bool shared = r.num_rows > 4 && 3 * choices >= 2 * r.num_experts;
  const bool large = choices * double(args.gate_up.bytes() + args.down.bytes()) >= LARGE;
  if (shared && large && takes_expert_rows(device, args.gate_up, groups.size, groups.most)) return false;
  return can_decode(device, args);
}

void expert_decode(const Launch& launch, const ExpertDecode& args) {
  const Plans plans(launch.device, args);
  const Routing& r = args.routing;
  launch(expert_choose_kernel, dim3(1), dim3(DECODE_THREADS), size_t(4) * r.num_rows * route_words(r.num_experts, r.groups), args);
  with_host_format(args.gate_up.format, [&](auto format) {
    start(launch, expert_up_kernel<decltype(format)>, DECODE_THREADS, args, plans.up_blocks, plans.up);
  });
  with_host_format(args.down.format, [&](auto format) {
    start(launch, expert_down_kernel<decltype(format)>, DOWN_TEAMS * DECODE_THREADS, args, plans.down_blocks, plans.down);
  });
}

}  // namespace pen
