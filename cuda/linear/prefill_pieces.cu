// Linear layers: hopper.cuh for pieces of two K tiles. A consumer waits, arrives and issues products half as often as with single K tiles.
#include "hopper.cuh"

namespace pen {

bool run_hopper_pieces(const Launch& launch, const Linear& args, const HopperPlan& plan) {
  using Formats = std::tuple<FormatQ4Min, FormatQ5Min, FormatQ6>;  // those of takes_pieces()
  CUtensorMap x;
  if (!map_tokens(x, args, 128)) return false;
  const auto start = [&](auto each) {
    using Format = decltype(each);
    const bool found = Format::id == args.w[0].format;
    if (found) start_hopper<Format, 128, HOPPER_PIECE>(launch, args, plan.grid, x);
    return found;
  };
  return std::apply([&](auto... each) { return (start(each) || ...); }, Formats{});
}

}  // namespace pen
