// Checks recurrent mixers: outputs and states against float64 on the host, prompts cut into steps at random against the whole prompt bit
// for bit, sequences together with others and with padding, and copies of slots.
//   nvcc -std=c++17 -O3 -arch=native -Icuda/include cuda/bench/recurrence.cu cuda/recurrence/*.cu -o recurrence
//   recurrence [--quick] [--time]
#include <cstring>

#include "graph_time.h"
#include "recurrence_mixers.h"

using namespace pen;
using namespace pen::bench;

namespace {

cudaStream_t test_stream() {
  static const cudaStream_t stream = [] {
    cudaStream_t made;
    check(cudaStreamCreate(&made), "stream");
    return made;
  }();
  return stream;
}

// Several sequences' rows, and their states on the device.
struct Rig {
  const Mixer& mixer;
  int at, width, padding;  // floats of a slot before the state, and in total; padding sequences of a step
  std::vector<std::vector<Floats>> rows;  // per sequence
  std::vector<std::vector<Floats>> outs;
  std::vector<int> done;
  Array<float> states;  // one slot per sequence, in reverse order, and one that only padding uses

  Rig(const Mixer& mixer, const std::vector<std::vector<Floats>>& rows, int at, int padding)
      : mixer(mixer), at(at), width(at + mixer.state + at), padding(padding), rows(rows), outs(rows.size()), done(rows.size()),
        states((rows.size() + 1) * size_t(width)) {}

  // Runs one step: counts[i] rows of sequence order[i].
  void step(const std::vector<int>& order, const std::vector<int>& counts, bool overlap) {
    const int ld_in = mixer.in + at, ld_out = mixer.out + at;
    std::vector<uint32_t> positions, mapping, cu{0}, contexts, slots;
    Floats in;
    int most = 1;
    for (size_t i = 0; i < order.size(); i++) {
      const int s = order[i];
      for (int r = 0; r < counts[i]; r++) {
        positions.push_back(done[s] + r), mapping.push_back(uint32_t(mapping.size()));
        in.insert(in.end(), rows[s][done[s] + r].begin(), rows[s][done[s] + r].end());
        in.resize(in.size() + at, NAN);
      }
      cu.push_back(uint32_t(positions.size())), contexts.push_back(done[s] + counts[i]), slots.push_back(uint32_t(rows.size() - 1 - s));
      most = std::max(most, counts[i]);
    }
    for (int i = 0; i < padding; i++) {
      positions.push_back(0), mapping.push_back(NO_SLOT), contexts.push_back(0), slots.push_back(uint32_t(rows.size()));
      cu.push_back(uint32_t(positions.size()));
      in.resize(in.size() + ld_in, NAN);
    }
    Array<uint32_t> positions_d(positions), mapping_d(mapping), cu_d(cu), contexts_d(contexts), slots_d(slots);
    Array<float> in_d(in), out_d(positions.size() * ld_out);
    const int most_rows = most > 1 ? most + below(40) : 1;  // an upper bound
    const StepView view{positions_d.data, mapping_d.data, cu_d.data, contexts_d.data, nullptr,
                        int(positions.size()), int(contexts.size()), 0, most_rows, 1 << 20};
    Launch launch{gpu(), test_stream()};
    launch.overlap = overlap;
    mixer.run(launch, in_d.data, ld_in, out_d.data, ld_out, States{states.data, width, slots_d.data}, at, view);
    check(cudaDeviceSynchronize(), mixer.name.c_str());
    const Floats out = out_d.get();
    size_t row = 0;
    for (size_t i = 0; i < order.size(); i++) {
      for (int r = 0; r < counts[i]; r++, row++) outs[order[i]].emplace_back(&out[row * ld_out], &out[row * ld_out] + mixer.out);
      done[order[i]] += counts[i];
    }
    uint32_t bits;
    bool touched = false;
    for (size_t i = 0; i < out.size(); i++) {
      std::memcpy(&bits, &out[i], 4);
      touched |= (i / ld_out >= row || int(i % ld_out) >= mixer.out) && bits != 0xffffffffu;
    }
    expect(!touched, mixer.name, "rows of padding and the columns behind stay as they are");
  }

  Floats state(int s) const {
    const Floats all = states.get();
    const auto from = all.begin() + (rows.size() - 1 - s) * width + at;
    return Floats(from, from + mixer.state);
  }

  void check_untouched() const {
    const Floats all = states.get();
    for (size_t i = 0; i < all.size(); i++) {
      const int column = int(i % width);
      const bool is_state = i / width < rows.size() && column >= at && column < at + mixer.state;
      uint32_t bits;
      std::memcpy(&bits, &all[i], 4);
      if (!is_state && bits != 0xffffffffu) return expect(false, mixer.name, "floats beside the states stay as they are");
    }
  }
};

bool same(const Floats& a, const Floats& b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0; }

void check_mixer(const Mixer& mixer, const std::vector<int>& lengths, bool overlap) {
  std::vector<std::vector<Floats>> rows(lengths.size());
  for (size_t s = 0; s < lengths.size(); s++) {
    rows[s].assign(lengths[s], Floats(mixer.in));
    for (auto& row : rows[s]) mixer.fill(row);
  }
  std::vector<int> order(lengths.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = int(i);
  Rig whole(mixer, rows, 4, 3);
  whole.step(order, lengths, overlap);
  whole.check_untouched();
  // Compares errors with the largest value of all sequences, because a single row's sums may cancel.
  double error = 0, size = 0, state_error = 0, state_size = 0;
  bool finite = true;
  const auto compare = [&](float got, double exact, double& error, double& size) {
    finite &= std::isfinite(got);
    error = std::max(error, std::abs(got - exact)), size = std::max(size, std::abs(exact));
  };
  for (size_t s = 0; s < lengths.size(); s++) {
    Doubles state(mixer.state), out(mixer.out);
    for (int r = 0; r < lengths[s]; r++) {
      mixer.reference(rows[s][r].data(), state, out.data());
      for (int i = 0; i < mixer.out; i++) compare(whole.outs[s][r][i], out[i], error, size);
    }
    const Floats got = whole.state(int(s));
    for (int i = 0; i < mixer.state; i++) compare(got[i], state[i], state_error, state_size);
  }
  expect(finite, mixer.name, "everything is finite");
  expect(error <= 1e-5 * size, mixer.name, "outputs are near the exact ones");
  expect(state_error <= 1e-5 * state_size, mixer.name, "states are near the exact ones");
  largest_error = std::max({largest_error, error / size, state_size > 0 ? state_error / state_size : 0.0});
  // Steps of random sizes in random order, at odd addresses, then one row at a time.
  for (int longest : {23, 70, 1}) {
    Rig cut(mixer, rows, longest == 70 ? 4 : 3, longest == 1 ? 0 : below(3));
    for (;;) {
      std::vector<int> left, counts;
      for (size_t s = 0; s < lengths.size(); s++) {
        if (cut.done[s] < lengths[s] && (longest == 1 || below(4))) left.push_back(int(s));
      }
      std::shuffle(left.begin(), left.end(), random_bits);
      for (int s : left) counts.push_back(std::min(lengths[s] - cut.done[s], 1 + (below(3) ? below(longest) : 0)));
      if (!left.empty()) cut.step(left, counts, overlap);
      if (cut.done == lengths) break;
    }
    cut.check_untouched();
    for (size_t s = 0; s < lengths.size(); s++) {
      bool alike = same(cut.state(int(s)), whole.state(int(s)));
      for (int r = 0; r < lengths[s]; r++) alike &= same(cut.outs[s][r], whole.outs[s][r]);
      expect(alike, mixer.name, "a prompt in parts has the bits of the whole");
    }
  }
  // A value that is not finite stays so, and only affects its own row and later ones.
  rows[0].back()[mixer.in == mixer.out ? 0 : 1] = NAN;
  Rig bad(mixer, rows, 4, 0);
  bad.step({0}, {lengths[0]}, overlap);
  const Floats& last = bad.outs[0].back();
  expect(std::any_of(last.begin(), last.end(), [](float x) { return std::isnan(x); }), mixer.name, "NaN stays visible");
  for (int r = 0; r + 1 < lengths[0]; r++) expect(same(bad.outs[0][r], whole.outs[0][r]), mixer.name, "earlier rows do not see NaN");
}

void check_copies(size_t width) {
  Floats all(8 * width);
  for (size_t i = 0; i < all.size(); i++) all[i] = uniform(-1.0f, 1.0f);
  Array<float> device(all);
  const std::vector<uint32_t> pairs{3, 1, 3, 7, 0, 2};
  Array<uint32_t> pairs_d(pairs);
  copy_states(Launch{gpu(), test_stream()}, device.data, width, pairs_d.data, int(pairs.size() / 2));
  for (size_t i = 0; i < pairs.size(); i += 2) std::copy_n(&all[pairs[i] * width], width, &all[pairs[i + 1] * width]);
  expect(same(device.get(), all), "slots of " + std::to_string(width), "copies are whole");
}

// Microseconds per call in a graph of calls that use the states of different layers in turn, so that decode does not find them in the
// cache.
void time_mixer(const Mixer& mixer, int sequences, int rows) {
  const size_t state = size_t(sequences) * mixer.state;
  const int layers = std::max(2, std::min(48, int(200e6 / 4 / state) + 1)), tokens = sequences * rows;
  Floats in(size_t(rows) * mixer.in);
  for (int r = 0; r < rows; r++) {
    Floats row(mixer.in);
    mixer.fill(row);
    std::copy(row.begin(), row.end(), &in[size_t(r) * mixer.in]);
  }
  Array<float> in_d(size_t(tokens) * mixer.in), out_d(size_t(tokens) * mixer.out), states(layers * state);
  check(cudaMemset(states.data, 0, layers * state * 4), "zeros");
  std::vector<uint32_t> positions(tokens), cu{0}, contexts(sequences, rows + 1), slots(sequences);
  for (int s = 0; s < sequences; s++) {
    check(cudaMemcpy(in_d.data + s * in.size(), in.data(), in.size() * 4, cudaMemcpyHostToDevice), "rows");
    for (int r = 0; r < rows; r++) positions[s * rows + r] = r + 1;
    cu.push_back((s + 1) * rows), slots[s] = s;
  }
  Array<uint32_t> positions_d(positions), cu_d(cu), contexts_d(contexts), slots_d(slots);
  const StepView view{positions_d.data, positions_d.data, cu_d.data, contexts_d.data, nullptr, tokens, sequences, 0, rows, rows + 1};
  const cudaStream_t stream = test_stream();
  Launch launch{gpu(), stream};
  launch.overlap = gpu().major >= 9;
  const double all = graph_us(stream, 7, [&] {
    for (int i = 0; i < layers; i++) {
      mixer.run(launch, in_d.data, mixer.in, out_d.data, mixer.out, States{states.data + i * state, mixer.state, slots_d.data}, 0, view);
    }
  });
  const double us = all / layers, moved = 8.0 * state + 4.0 * tokens * (mixer.in + mixer.out);
  std::printf("%-28s %3d sequences of %5d rows: %9.2f us, %7.1f ns per row, %7.1f GB/s\n", mixer.name.c_str(), sequences, rows, us,
              us * 1e3 / rows, moved / us / 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  const auto has = [&](const char* flag) { return std::any_of(argv + 1, argv + argc, [&](char* x) { return !std::strcmp(x, flag); }); };
  const bool quick = has("--quick"), overlap = gpu().major >= 9;
  std::vector<Mixer> mixers = {
      scan_mixer("scan, 16 keys", 3, 16, 70, 3, false, true, 0),
      scan_mixer("scan, 7 keys", 2, 7, 5, 1, false, false, 1),
      scan_mixer("scan, 64 keys, no steps", 4, 64, 64, 1, false, false, 0),
      scan_mixer("scan, 128 keys", 4, 128, 40, 2, false, true, 0),
      scan_mixer("scan, 256 keys", 2, 256, 17, 2, false, true, 3),
      scan_mixer("scan, 300 keys", 1, 300, 9, 1, false, true, 0),
      scan_mixer("scan by channel, 16 keys", 1, 16, 200, 1, true, true, 0),
      scan_mixer("scan by channel, 5 keys", 1, 5, 33, 1, true, true, 1),
      scan_mixer("scan by channel, 40 keys", 1, 40, 33, 1, true, true, 0),
      delta_mixer("delta, 128 keys", 4, 2, false, false, 128, 128, 0),
      delta_mixer("delta, tiled", 4, 2, true, false, 64, 36, 0),
      delta_mixer("delta, 101 keys", 2, 2, false, false, 101, 33, 1),
      delta_mixer("delta by key, 128 keys", 2, 2, false, true, 128, 128, 0),
      delta_mixer("delta by key, 9 keys", 3, 3, false, true, 9, 6, 1),
      delta_mixer("delta by key, 256 keys", 1, 1, false, true, 256, 20, 0),
      convolution_mixer("convolution, 4 taps", 300, 4, true, true),
      convolution_mixer("convolution, 3 taps", 128, 3, false, false),
      convolution_mixer("convolution, 2 taps", 7, 2, true, false),
      convolution_mixer("convolution, 1 tap", 65, 1, false, true),
      convolution_mixer("convolution, 40 taps", 33, 40, true, true),
  };
  std::vector<int> lengths{18, 1, 2, 5, 70, 16, 3};
  if (!quick) {
    lengths.insert(lengths.end(), {333, 1, 64, 129, 32, 33, 1000});
    mixers.push_back(scan_mixer("scan, 1024 keys", 1, 1024, 9, 1, false, true, 0));
    mixers.push_back(scan_mixer("scan by channel, 1000 keys", 1, 1000, 9, 1, true, true, 0));
    mixers.push_back(delta_mixer("delta, 1024 keys", 1, 1, false, false, 1024, 9, 0));
    mixers.push_back(delta_mixer("delta by key, 1024 keys", 1, 1, false, true, 1024, 9, 0));
  }
  for (const Mixer& mixer : mixers) check_mixer(mixer, lengths, overlap);
  for (size_t width : {1u, 4u, 1023u, 40000u, 5000000u}) check_copies(width);
  std::printf("largest error: %.1e of the largest value\n", largest_error);
  std::printf(failures ? "%d checks failed\n" : "all checks passed\n", failures);
  if (has("--time") && failures == 0) {
    const Mixer models[] = {
        delta_mixer("Qwen3-Next, delta", 32, 16, false, false, 128, 128, 0),
        delta_mixer("Kimi, delta by key", 32, 32, false, true, 128, 128, 0),
        scan_mixer("Granite 4, scan", 128, 128, 64, 128, false, true, 0),
        scan_mixer("Falcon-H1, scan", 32, 256, 64, 32, false, true, 0),
        scan_mixer("Mamba 1, scan", 1, 16, 8192, 1, true, true, 0),
        convolution_mixer("Qwen3-Next, convolution", 8192, 4, false, true),
        convolution_mixer("LFM2, convolution", 2048, 3, false, false),
    };
    for (const Mixer& mixer : models) {
      time_mixer(mixer, 1, 1), time_mixer(mixer, 64, 1), time_mixer(mixer, 1, 2048), time_mixer(mixer, 8, 512);
    }
  }
  return failures != 0;
}
