// Layers with experts for few rows: the launches.
#include "decode.h"

#include <algorithm>

#include "decode.cuh"

namespace pen {

namespace {

constexpr size_t STATIC = round_up(sizeof(Lists) + SLICES * MAX_RING_SLOTS * 8 + sizeof(int2[UP_COLUMNS]), 128);

// Divides `budget` bytes: the partial sums, the rows of x (as many as may be wanted, but no fewer than `least`), and the rings. No
// slots: they do not fit.
StreamPlan divide(const Matrix& w, size_t partial, int rows, int least, size_t budget) {
  constexpr int USUAL_SLOTS = 3;  // at least, before pieces become longer
  StreamPlan plan{};
  const int longest = ceil_div(w.chunks(), SLICES);
  plan.x_stride = longest * CHUNK * 2 + 16;
  plan.x_rows = std::min(rows, std::max(least, int(budget / 4 / SLICES / plan.x_stride)));
  plan.x_at = int(round_up(partial, 128));
  plan.ring_at = int(round_up(plan.x_at + size_t(SLICES) * plan.x_rows * plan.x_stride, 128));
  plan.bytes = budget / 128 * 128;
  if (size_t(plan.ring_at) >= plan.bytes || longest > LONGEST_SLICE) return plan;
  plan.ring_bytes = int((plan.bytes - plan.ring_at) / SLICES / 16 * 16);
  const int records = plan.ring_bytes / (2 * w.record_bytes);  // of each of two units
  plan.piece = std::max(1, std::min(records / USUAL_SLOTS, longest));
  plan.slots = std::min(records / plan.piece, MAX_RING_SLOTS);
  return plan;
}

int all_choices(const ExpertDecode& args) { return args.routing.num_rows * (args.routing.used + (args.shared_down ? 1 : 0)); }

// The first kernel takes more than half of a multiprocessor's shared memory, the second what is left of it. So each multiprocessor has one
// block of each, and the second kernel's weights arrive while the first one multiplies. Or each takes what a block may have.
struct Plans {
  StreamPlan up, down;
  bool fit() const { return up.slots >= 2 && down.slots >= 2; }
  Plans(const Device& device, const ExpertDecode& args) {
    const Routing& r = args.routing;
    const size_t own = STATIC + device.shared_reserved, most = device.shared_block - STATIC;
    const size_t share = size_t(device.shared_multiprocessor) / 16 * 9;
    const auto first = [&](size_t budget) { return divide(args.gate_up, up_partial_bytes(), r.num_rows, r.num_rows, budget); };
    const auto second = [&](size_t budget) {
      const int all = all_choices(args);
      return divide(args.down, down_partial_bytes(all), all, std::min(all, 2 * r.num_rows), budget);
    };
    up = first(share - own), down = second(device.shared_multiprocessor - share - own);
    if (up.slots < 3) up = first(most);
    if (down.slots < 3) down = second(most);
  }
};

// Calls f(Format{}) for a format.
template <class F>
void with_host_format(int format, F f) {
  std::apply([&](auto... each) { ((decltype(each)::id == format ? f(each) : void()), ...); }, AllFormats{});
}

template <class Kernel>
void start(const Launch& launch, Kernel kernel, const ExpertDecode& args, int blocks, const StreamPlan& plan) {
  launch.device.first_use(kernel, [&] { allow_shared(kernel, int(launch.device.shared_block - STATIC)), prefer_shared(kernel); });
  launch(kernel, dim3(blocks), dim3(DECODE_THREADS), plan.bytes, args, plan);
}

}  // namespace

bool can_decode(const Device& device, const ExpertDecode& args) {
  const Routing& r = args.routing;
  // The kernels are empty in code for older GPUs, which a device may have made its own from.
  const bool compiled = device.major >= 9 && device.compiled(expert_up_kernel<FormatH16>).ptxVersion >= 90;
  return compiled && r.num_rows <= DECODE_ROWS && r.num_rows * r.used <= DECODE_CHOICES && r.num_experts <= DECODE_EXPERTS &&
         r.chunk_group == 0 && Plans(device, args).fit();
}

// Measured on an H200: these kernels save some 15 µs of launches and hand-offs, but they read slower than those of experts.h, above all
// formats with a table, whose records take more instructions. So they pay up to some number of bytes.
bool takes_decode(const Device& device, const ExpertDecode& args) {
  constexpr size_t MOST = size_t(128) << 20, MOST_WITH_TABLE = size_t(16) << 20;
  const size_t bytes = size_t(all_choices(args)) * (args.gate_up.bytes() + args.down.bytes());
  const bool table = args.gate_up.format >= FORMAT_IQ1 || args.down.format >= FORMAT_IQ1;
  return bytes <= (table ? MOST_WITH_TABLE : MOST) && can_decode(device, args);
}

void expert_decode(const Launch& launch, const ExpertDecode& args) {
  const Device& device = launch.device;
  const Plans plans(device, args);
  const int most = device.multiprocessors, up_tiles = all_choices(args) * args.gate_up.tiles();
  with_host_format(args.gate_up.format, [&](auto format) {
    start(launch, expert_up_kernel<decltype(format)>, args, std::min(up_tiles, most), plans.up);
  });
  with_host_format(args.down.format, [&](auto format) {
    start(launch, expert_down_kernel<decltype(format)>, args, std::min(args.down.tiles(), most), plans.down);
  });
}

}  // namespace pen
