// Layers with experts for few rows: the launches.
#include "decode.h"

#include <algorithm>

#include "decode.cuh"

namespace pen {

namespace {

constexpr size_t LISTS = round_up(sizeof(Lists) + sizeof(int2[UP_COLUMNS]), 128);

// The shared memory of a kernel: how many rows it copies, where its rings begin, the bytes of each warp's, and all of it.
struct Plan {
  int staged_rows;
  size_t ring_at, ring, bytes;
  Plan(const Matrix& w, size_t partial, int rows) : staged_rows(rows) {
    ring_at = round_up(partial + size_t(rows) * staged_stride(w.cols) * 2, 128);
    ring = size_t(w.record_bytes) * ring_records(w.record_bytes, RingSize::USUAL);
    bytes = ring_at + SLICES * ring;
  }
  bool fits(const Device& device) const { return bytes + LISTS <= size_t(device.shared_block); }
};

Plan plan(const Device& device, const Matrix& w, size_t partial, int rows) {
  const Plan copies(w, partial, rows);
  return copies.fits(device) ? copies : Plan(w, partial, 0);
}

int all_choices(const ExpertDecode& args) { return args.routing.num_rows * (args.routing.used + (args.shared_down ? 1 : 0)); }
Plan up_plan(const Device& device, const ExpertDecode& args) {
  return plan(device, args.gate_up, up_partial_bytes(), args.routing.num_rows);
}
Plan down_plan(const Device& device, const ExpertDecode& args) {
  return plan(device, args.down, down_partial_bytes(all_choices(args)), all_choices(args));
}

template <class Kernel>
void start(const Launch& launch, Kernel kernel, const ExpertDecode& args, int blocks, const Plan& plan, size_t least) {
  launch.device.first_use(kernel, [&] { allow_shared(kernel, int(launch.device.shared_block - LISTS)), prefer_shared(kernel); });
  launch(kernel, dim3(blocks), dim3(DECODE_THREADS), std::max(plan.bytes, least), args, plan.staged_rows, int(plan.ring_at),
         int(plan.ring));
}

}  // namespace

bool takes_decode(const Device& device, const ExpertDecode& args) {
  const Routing& r = args.routing;
  return r.num_rows <= DECODE_ROWS && r.num_rows * r.used <= DECODE_CHOICES && r.num_experts <= DECODE_EXPERTS && r.chunk_group == 0 &&
         up_plan(device, args).fits(device) && down_plan(device, args).fits(device);
}

void expert_decode(const Launch& launch, const ExpertDecode& args) {
  const Device& device = launch.device;
  const int most = 2 * device.multiprocessors, up_tiles = all_choices(args) * args.gate_up.tiles();
  // So much that no multiprocessor takes three blocks while others take one, but a block of the second kernel finds room.
  const size_t least = device.major >= 9 ? device.shared_multiprocessor / 3 + 128 - LISTS - device.shared_reserved : 0;
  start(launch, expert_up_kernel, args, std::min(up_tiles, most), up_plan(device, args), least);
  start(launch, expert_down_kernel, args, std::min(args.down.tiles(), most), down_plan(device, args), 0);
}

}  // namespace pen
