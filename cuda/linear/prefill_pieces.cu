// Linear layers: hopper.cuh for pieces of two K tiles. A consumer waits, arrives and issues products half as often as with single K tiles.
#include "hopper.cuh"

namespace pen {

bool run_hopper_pieces(const Launch& launch, const Linear& args) {
  constexpr int TOKENS = 128, PIECE = 2;
  // The most common formats of files among those whose records leave room for four stages.
  using Formats = std::tuple<FormatQ4Min, FormatQ5Min, FormatQ6>;
  CUtensorMap x;
  const int k_tiles = args.w[0].k_tiles();
  // With shorter slices, the sums could not be written in parts.
  if (k_tiles % (SLICES * PIECE) != 0 || k_tiles < PARTS_PIECES * SLICES * PIECE || !map_tokens(x, args, TOKENS)) return false;
  if (args.num_tokens <= HOPPER_FEW_TOKENS) return false;
  const auto start = [&](auto each) {
    using Format = decltype(each);
    const bool found = Format::id == args.w[0].format;
    if (found) start_hopper<Format, TOKENS, PIECE>(launch, args, x);
    return found;
  };
  return std::apply([&](auto... each) { return (start(each) || ...); }, Formats{});
}

}  // namespace pen
