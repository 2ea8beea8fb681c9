// Checks layers of few rows: the kernels of decode.h bit for bit against those of experts.h, with and without overlap.
#pragma once

#include "../experts/decode.h"
#include "experts_products.cuh"

namespace pen::bench {

// A layer and everything it reads and writes.
struct Layer {
  Shape shape;
  int ld_hidden, ld_ffn;
  Stack gate_up, down, shared_gate_up, shared_down;
  Array<float> scores, router, gate_bias, up_bias, down_bias, choice_bias, share, weights, outputs, shared_out, out;
  Array<uint32_t> slots;
  Array<__half> x, hidden, shared_hidden;
  Array<uint4> lists{lists_bytes() / sizeof(uint4)};
  Array<int32_t> chosen, expert_of, order, all_rows, one_expert, one_order, num_groups{1}, one_group{1};

  // `alike`: all experts are equal.
  Layer(const Shape& s, uint32_t up_type, uint32_t down_type, const std::vector<uint32_t>& slot_mapping, bool alike = false)
      : shape(s), ld_hidden(int(round_up(s.hidden, K_TILE))), ld_ffn(int(round_up(s.ffn, K_TILE))),
        gate_up(*quant_row(up_type), 2 * s.ffn, s.hidden, s.experts, true, alike),
        down(*quant_row(down_type), s.hidden, s.ffn, s.experts, false, alike),
        shared_gate_up(*quant_row(up_type), 2 * s.ffn, s.hidden, 1, true), shared_down(*quant_row(down_type), s.hidden, s.ffn, 1),
        scores(floats(size_t(s.rows) * s.experts, 4)), router(floats(s.hidden, 0.1f)), gate_bias(floats(size_t(s.experts) * s.ffn, 1)),
        up_bias(floats(size_t(s.experts) * s.ffn, 1)), down_bias(floats(size_t(s.experts) * s.hidden, 1)),
        choice_bias(floats(s.experts, 0.1f)), share(s.rows), weights(s.choices()), outputs(size_t(s.choices()) * s.hidden),
        shared_out(size_t(s.rows) * s.hidden), out(floats(size_t(s.rows) * s.hidden, 1)), slots(slot_mapping),
        x(halves(s.rows, ld_hidden, s.hidden, 1)), hidden(halves(s.choices() + s.rows, ld_ffn, 0, 0)),
        shared_hidden(halves(s.rows, ld_ffn, 0, 0)), chosen(s.choices()), expert_of(most_groups(s.choices(), s.experts, 8)),
        order(size_t(s.choices()) + s.experts * MAX_GROUP), all_rows(std::vector<int32_t>(s.rows, 0)), one_expert(ceil_div(s.rows, 8)),
        one_order(s.rows + MAX_GROUP) {}

  ExpertDecode decode_args() {
    const Shape& s = shape;
    ExpertDecode a{};
    a.routing = Routing{scores.data, slots.data, x.data, nullptr, s.rows, s.experts, s.used, ld_hidden, s.hidden,
                        true, nullptr, nullptr, share.data};
    a.gate_up = gate_up.one, a.down = down.one;
    a.x = x.data, a.ldx = ld_hidden, a.hidden = hidden.data, a.ld_hidden = ld_ffn;
    a.activation = Activation::SILU;
    a.lists = lists.data;
    a.combine.out = out.data, a.combine.hidden = s.hidden, a.combine.used = s.used, a.combine.add = true;
    a.combine.num_experts = s.experts;
    return a;
  }

  // Runs the same layer through the functions of experts.h.
  void run_general(const Launch& launch, const ExpertDecode& a) {
    const Shape& s = shape;
    Routing r = a.routing;
    r.chosen = chosen.data, r.weights = weights.data;
    route(launch, r);
    const Groups groups(s.choices(), s.experts, s.rows, least_group(gpu(), a.gate_up));
    const Grouping all{chosen.data, s.choices(), s.experts, groups.size, groups.most, expert_of.data, order.data, num_groups.data};
    group_choices(launch, all);
    products(launch, a, a.gate_up, a.down, all, s.used, hidden, outputs, true);
    Combine c = a.combine;
    if (a.shared_down) {
      Matrix up = a.gate_up, back = a.down;
      up.data = a.shared_gate_up, back.data = a.shared_down;
      const Groups rows(s.rows, 1, s.rows, least_group(gpu(), a.gate_up));
      const Grouping one{all_rows.data, s.rows, 1, rows.size, rows.most, one_expert.data, one_order.data, one_group.data};
      group_choices(launch, one);
      products(launch, a, up, back, one, 1, shared_hidden, shared_out, false);
      c.shared = shared_out.data;
    }
    c.outputs = outputs.data, c.weights = weights.data, c.chosen = chosen.data, c.slot_mapping = slots.data;
    combine(launch, c, s.rows);
  }

 private:
  void products(const Launch& launch, const ExpertDecode& a, const Matrix& up, const Matrix& back, const Grouping& by, int share_rows,
                const Array<__half>& between, const Array<float>& to, bool biased) {
    ExpertLinear args{};
    args.w[0] = up, args.num_segments = 1, args.expert_of = by.expert_of, args.order = by.order, args.num_groups = by.num_groups;
    args.group = by.group;
    args.x = a.x, args.ldx = a.ldx, args.share = share_rows, args.out16 = between.data, args.ldo = ld_ffn, args.glu = true;
    args.activation = a.activation, args.gate_bias = biased ? a.gate_bias : nullptr, args.up_bias = biased ? a.up_bias : nullptr;
    expert_linear(launch, args, by.max_groups);
    ExpertLinear last = args;
    last.w[0] = back, last.glu = false;
    last.x = between.data, last.ldx = ld_ffn, last.share = 1, last.out = to.data, last.ldo = shape.hidden;
    expert_linear(launch, last, by.max_groups);
  }
};

inline void check_decode_shape(const Shape& s, uint32_t up_type, uint32_t down_type) {
  std::vector<uint32_t> slots(s.rows);
  Layer layer(s, up_type, down_type, slots);
  for (int bits = 0; bits < 16; bits++) {
    for (int i = 0; i < s.rows; i++) slots[i] = (bits & 1) && i % 3 == 2 ? NO_SLOT : uint32_t(i);
    check(cudaMemcpy(layer.slots.data, slots.data(), slots.size() * sizeof(uint32_t), cudaMemcpyHostToDevice), "slots");
    ExpertDecode a = layer.decode_args();
    if (bits & 2) {
      a.gate_bias = layer.gate_bias.data, a.up_bias = layer.up_bias.data, a.combine.down_bias = layer.down_bias.data;
      a.activation = Activation::SWIGLU_CLAMPED;
      a.routing.gating = Gating::SOFTMAX_OF_CHOSEN;
    }
    if (bits & 4) {
      a.shared_gate_up = layer.shared_gate_up.one.data, a.shared_down = layer.shared_down.one.data;
      a.combine.mean_shared = (bits & 2) != 0;
      if (bits & 1) a.routing.shared_router = layer.router.data, a.combine.share = layer.share.data;
    }
    if (bits & 8) {
      a.routing.gating = Gating::SIGMOID, a.routing.choice_bias = layer.choice_bias.data, a.routing.scale = 2.5f;
      a.combine.add = false, a.combine.scale = 0.7f;
      if (s.experts % 4 == 0 && s.experts / 2 >= s.used) a.routing.groups = 4, a.routing.groups_used = 2;
    }
    expect(can_decode(gpu(), a), "the kernels for few rows take the layer");
    Array<float> before(layer.out.get());
    const size_t bytes = layer.out.size * sizeof(float);
    layer.run_general(Launch{gpu()}, a);
    const std::vector<float> exact = layer.out.get();
    cudaStream_t stream;
    check(cudaStreamCreate(&stream), "stream");
    for (bool overlap : {false, true}) {
      for (int again = 0; again < 3; again++) {
        check(cudaMemcpyAsync(layer.out.data, before.data, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
        check(cudaMemsetAsync(layer.share.data, 0, layer.share.size * sizeof(float), stream), "clear");
        expert_decode(Launch{gpu(), stream, overlap}, a);
        check(cudaStreamSynchronize(stream), "a layer of few rows");
        const std::vector<float> got = layer.out.get();
        expect(std::memcmp(got.data(), exact.data(), bytes) == 0, "a layer of few rows has the bits of the general kernels");
      }
    }
    cudaStreamDestroy(stream);
  }
}

inline void check_decode(bool quick) {
  if (gpu().major < 9) return;
  check_decode_shape({1, 8, 2, 256, 96}, 1, 8);
  check_decode_shape({5, 12, 3, 512, 256}, 12, 12);
  check_decode_shape({8, 128, 8, 512, 256}, 39, 39);
  if (quick) return;
  check_decode_shape({1, 128, 8, 2048, 768}, 12, 14);
  check_decode_shape({8, 160, 6, 1024, 512}, 12, 12);
  check_decode_shape({3, 512, 10, 1024, 320}, 8, 8);
  check_decode_shape({8, 64, 8, 4096, 768}, 12, 12);
  check_decode_shape({2, 32, 4, 2880, 2880}, 39, 39);
  check_decode_shape({4, 16, 4, 2880, 2880}, 39, 39);
}

}  // namespace pen::bench
