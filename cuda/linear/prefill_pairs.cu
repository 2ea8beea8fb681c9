// Linear layers: two parts of a product of many tokens, whose formats differ, in one launch of hopper.cuh. In separate launches, each part
// would leave much of the device idle in its last wave.
#include "hopper.cuh"

namespace pen {

namespace {

struct PairPart {
  Linear p;
  HopperGrid grid;
  CUtensorMap out;
};

// Grid: clusters of two blocks along x. The first `clusters` of them compute the first part.
template <class First, class Second, int TOKENS>
__global__ void __launch_bounds__(HOPPER_THREADS, 1)
    linear_pair_kernel(const __grid_constant__ PairPart first, const __grid_constant__ PairPart second,
                       const __grid_constant__ CUtensorMap x, int clusters) {
#ifdef PEN_HOPPER_DEVICE
  using A = HopperShared<First, TOKENS>;
  using B = HopperShared<Second, TOKENS>;
  extern __shared__ uint8_t dynamic[];
  __shared__ Ring ring;
  const uint32_t stages = uint32_t(round_up(shared_of(dynamic), 1024));
  const int cluster = blockIdx.x / HOPPER_CLUSTER, all = gridDim.x / HOPPER_CLUSTER;
  const bool is_first = cluster < clusters;
  const HopperUnits own_units = is_first ? HopperUnits{cluster, clusters} : HopperUnits{cluster - clusters, all - clusters};
  begin_block<(A::STAGES > B::STAGES ? A::STAGES : B::STAGES)>(ring);
  if (threadIdx.x >= HOPPER_CONSUMERS) {
    become_producer();
    if (is_first) produce_units<A>(first.p, first.grid, own_units, x, stages, ring);
    else produce_units<B>(second.p, second.grid, own_units, x, stages, ring);
  } else {
    become_consumer();
    if (is_first) consume_units<A, First>(first.p, first.grid, own_units, first.out, stages, ring);
    else consume_units<B, Second>(second.p, second.grid, own_units, second.out, stages, ring);
  }
  end_block();
#endif
}

PairPart pair_part(const Linear& args, const HopperGrid& grid, int tokens) {
  PairPart part{args, grid, {}};
  part.grid.boxed = grid.whole > 0 && map_sums(part.out, args, tokens);
  return part;
}

template <class First, class Second, int TOKENS>
void start_pair(const Launch& launch, const Linear& first, const Linear& second, const HopperPair& plan, const CUtensorMap& x) {
  const auto kernel = linear_pair_kernel<First, Second, TOKENS>;
  launch.device.first_use(kernel, [&] { allow_shared(kernel, HOPPER_SHARED_LIMIT), prefer_shared(kernel); });
  constexpr size_t A = HopperShared<First, TOKENS>::bytes, B = HopperShared<Second, TOKENS>::bytes;
  const int others = std::min(plan.second.grid.units, product_device(launch.device).clusters - plan.clusters);
  const int clusters = std::min(plan.first.grid.units, plan.clusters);
  const Launch paired{launch.device, launch.stream, launch.overlap, HOPPER_CLUSTER};
  paired(kernel, dim3((clusters + others) * HOPPER_CLUSTER), dim3(HOPPER_THREADS), std::max(A, B),
         pair_part(first, plan.first.grid, TOKENS), pair_part(second, plan.second.grid, TOKENS), x, clusters);
}

template <class A, class B>
struct FormatPair {
  using First = A;
  using Second = B;
};
// The mixtures of medium-sized file types (Q4_K_M, Q5_K_M): those of has_pair().
using Pairs = std::tuple<FormatPair<FormatQ4Min, FormatQ6>, FormatPair<FormatQ5Min, FormatQ6>>;

// Calls f(First{}, Second{}) for the pair of these formats. Returns false if there is no such pair.
template <class F>
bool with_pair(int first, int second, F f) {
  const auto each = [&](auto pair) {
    using Pair = decltype(pair);
    const bool found = Pair::First::id == first && Pair::Second::id == second;
    if (found) f(typename Pair::First{}, typename Pair::Second{});
    return found;
  };
  return std::apply([&](auto... pair) { return (each(pair) || ...); }, Pairs{});
}

}  // namespace

bool run_pair(const Launch& launch, const Linear& first, const Linear& given, const HopperPair& plan) {
  CUtensorMap x;
  Linear second = given;
  second.slabs += plan.behind_bytes / sizeof(float), second.arrivals += plan.behind_tiles;
  if (!map_tokens(x, first, plan.first.tokens)) return false;
  return with_pair(first.w[0].format, second.w[0].format, [&](auto a, auto b) {
    using A = decltype(a);
    using B = decltype(b);
    const auto start = plan.first.tokens == 64 ? start_pair<A, B, 64> : start_pair<A, B, 128>;
    start(launch, first, second, plan, x);
  });
}

}  // namespace pen
