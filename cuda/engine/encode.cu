// Runs picture encoders: sends pixels and lists in one copy, launches the program's kernels and brings the rows back. The stream has a
// lower priority than those of language models, whose blocks run first.
#include "encode.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "program.h"
#include "program_pictures.h"
#include "turns.h"

namespace pen {

namespace {

[[noreturn]] void wrong(const std::string& what) { throw StatusError(PEN_INVALID_ARG, what); }

// What the ops ask of a list: the rows that exist, and for attention the longest heads.
struct ListUse {
  uint32_t rows = UINT32_MAX, keys = UINT32_MAX;  // that the list may name
  uint32_t parts = 0;                             // that it must have
  int dim = 0;
};

struct ListUses {
  std::vector<ListUse> terms, spans;

  ListUses(const pen_model& m, const pen_pictures& p) : terms(p.num_terms), spans(p.num_spans) {
    for (const Instruction& instruction : m.program) {
      if (instruction.kind() == Kind::MIX) {
        const auto& op = instruction.as<MixOp>();
        if (op.list >= terms.size()) wrong("list " + std::to_string(op.list) + " of mixed rows is missing");
        ListUse& use = terms[op.list];
        use.rows = std::min(use.rows, op.table_rows ? op.table_rows : p.rows[op.set]);
        use.parts = std::max(use.parts, p.rows[instruction.rows()] * uint32_t(op.mix.parts));
      } else if (instruction.kind() == Kind::AMONG) {
        const auto& op = instruction.as<AmongOp>();
        if (op.list >= spans.size()) wrong("list " + std::to_string(op.list) + " of rows that see each other is missing");
        ListUse& use = spans[op.list];
        use.rows = std::min(use.rows, p.rows[op.query_set]);
        use.keys = std::min(use.keys, p.rows[op.key_set]);
        use.dim = std::max({use.dim, op.among.dim, op.among.value_dim});
      }
    }
  }
};

void check_terms(const pen_terms& list, const ListUse& use) {
  bool fits = list.num_parts >= use.parts && (list.num_parts == 0 || list.ends[list.num_parts - 1] == list.num_terms);
  for (uint32_t i = 1; fits && i < list.num_parts; i++) fits = list.ends[i - 1] <= list.ends[i];
  for (uint32_t i = 0; fits && i < list.num_terms; i++) fits = list.rows[i] < use.rows;
  if (!fits) wrong("a list of mixed rows is out of bounds");
}

void check_spans(const pen_spans& list, const ListUse& use) {
  for (const pen_span* span = list.spans; span != list.spans + list.num_spans; span++) {
    const bool fits = uint64_t(span->first) + span->rows <= use.rows && uint64_t(span->first_key) + span->keys <= use.keys;
    if (!fits || span->keys == 0) wrong("rows that see each other are out of bounds");
  }
}

void check_pictures(const pen_model& m, const pen_pictures& p, const ListUses& uses) {
  if (m.most_rows.empty()) wrong("the model is no picture encoder");
  for (size_t set = 0; set < PEN_NUM_ROW_SETS; set++) {
    if (p.rows[set] <= m.most_rows[set]) continue;
    throw StatusError(PEN_UNSUPPORTED, "pictures of " + std::to_string(p.rows[set]) + " rows, expected at most " +
                                           std::to_string(m.most_rows[set]));
  }
  for (const Instruction& instruction : m.program) {
    if (instruction.kind() != Kind::PATCHES) continue;
    const uint64_t size = uint64_t(instruction.as<Patches>().size);
    for (uint32_t i = 0; i < p.rows[PEN_ROWS_PATCHES]; i++) {
      if (p.patches[i].first + (size - 1) * p.patches[i].line + 3 * size > p.num_pixels) wrong("a patch has no pixels");
    }
  }
  for (uint32_t i = 0; i < 2 * p.rows[PEN_ROWS_TOWER]; i++) {
    if (p.positions[i] >= m.desc.max_positions) wrong("a patch is at no place that rotations know");
  }
  for (uint32_t i = 0; i < p.num_terms; i++) check_terms(p.terms[i], uses.terms[i]);
  for (uint32_t i = 0; i < p.num_spans; i++) check_spans(p.spans[i], uses.spans[i]);
}

// Cuts spans into tiles of at most `block_rows` rows.
std::vector<AmongTile> tiles_of(const pen_spans& list, int block_rows) {
  std::vector<AmongTile> tiles;
  for (const pen_span* span = list.spans; span != list.spans + list.num_spans; span++) {
    for (uint32_t row = 0; row < span->rows; row += uint32_t(block_rows)) {
      const int rows = std::min(block_rows, int(span->rows - row));
      tiles.push_back({int(span->first + row), rows, int(span->first_key), int(span->keys)});
    }
  }
  return tiles;
}

// The rows of a block, for a list's longest span and heads.
int block_rows_of(const pen_spans& list, int dim, const Device& device) {
  uint32_t longest = 0;
  for (uint32_t i = 0; i < list.num_spans; i++) longest = std::max(longest, list.spans[i].rows);
  const int rows = among_block_rows(int(longest), dim, has_among_wide(device, dim));
  return choose_among(dim, rows).bytes <= device.shared_block ? rows : 64;
}

// Arrays that go to the device in one copy, one behind another.
class Arrays {
 public:
  // Returns the array's place. It must live until write().
  template <class T>
  size_t put(const T* from, size_t count) {
    arrays_.push_back({from, count * sizeof(T), size_});
    size_ += round_up(count * sizeof(T), 16);
    return arrays_.back().place;
  }
  size_t size() const { return size_; }
  void write(uint8_t* to) const {
    for (const Array& array : arrays_) {
      if (array.bytes > 0) std::memcpy(to + array.place, array.from, array.bytes);
    }
  }

 private:
  struct Array {
    const void* from;
    size_t bytes, place;
  };
  std::vector<Array> arrays_;
  size_t size_ = 0;
};

// Makes room for what a step sends and returns. Old memory is free, because every step is waited for.
void reserve(pen_model& m, size_t lists, size_t rows) {
  PictureMemory& memory = *m.pictures;
  const bool fits = memory.lists.size() >= lists && memory.pinned.size() >= lists && memory.out.size() >= rows;
  if (fits) return;
  const std::lock_guard alone(device_wide());
  if (memory.lists.size() < lists) memory.lists = Buffer(m.ctx.memory, lists + lists / 2);
  if (memory.pinned.size() < lists) memory.pinned = Pinned(lists + lists / 2);
  if (memory.out.size() < rows) memory.out = Pinned(rows);
}

// The bytes of the output's rows.
size_t output_bytes(const pen_model& m, const pen_pictures& p) {
  const pen_buffer& rows = m.scratch.rows.at(m.desc.output).desc;
  return size_t(p.rows[rows.rows]) * rows.per_token * rows.width * sizeof(float);
}

// Sends everything that the step's kernels read.
PictureStep send(pen_model& m, const pen_pictures& p, const ListUses& uses, const uint32_t*& positions) {
  Arrays arrays;
  const size_t grid = arrays.put(p.positions, 2 * size_t(p.rows[PEN_ROWS_TOWER]));
  const size_t patches = arrays.put(p.patches, p.rows[PEN_ROWS_PATCHES]), pixels = arrays.put(p.pixels, p.num_pixels);
  struct Places {
    size_t ends, rows, weights;
  };
  std::vector<Places> terms;
  for (uint32_t i = 0; i < p.num_terms; i++) {
    const pen_terms& list = p.terms[i];
    const size_t ends = arrays.put(list.ends, list.num_parts), rows = arrays.put(list.rows, list.num_terms);
    terms.push_back({ends, rows, arrays.put(list.weights, list.num_terms)});
  }
  PictureStep step{};
  std::vector<size_t> tile_places;
  std::vector<std::vector<AmongTile>> tiles;
  for (uint32_t i = 0; i < p.num_spans; i++) {
    const int block_rows = block_rows_of(p.spans[i], uses.spans[i].dim, m.ctx.device);
    tiles.push_back(tiles_of(p.spans[i], block_rows));
    tile_places.push_back(arrays.put(tiles.back().data(), tiles.back().size()));
    uint64_t pairs = 0;
    for (const AmongTile& tile : tiles.back()) pairs += uint64_t(tile.rows) * uint64_t(tile.keys);
    step.tiles.push_back({nullptr, int(tiles.back().size()), block_rows, pairs});
  }
  reserve(m, arrays.size(), output_bytes(m, p));
  uint8_t *const host = m.pictures->pinned.as<uint8_t>(), *const base = m.pictures->lists.as<uint8_t>();
  arrays.write(host);
  check(cudaMemcpyAsync(base, host, arrays.size(), cudaMemcpyHostToDevice, m.stream.handle), "copying pictures");
  std::copy_n(p.rows, PEN_NUM_ROW_SETS, step.rows);
  step.pixels = base + pixels;
  step.patches = at<pen_patch>(base, patches);
  for (const Places& list : terms) {
    step.terms.push_back({at<uint32_t>(base, list.ends), at<uint32_t>(base, list.rows), at<float>(base, list.weights)});
  }
  for (size_t i = 0; i < tile_places.size(); i++) step.tiles[i].tiles = at<AmongTile>(base, tile_places[i]);
  positions = at<uint32_t>(base, grid);
  return step;
}

// The time that each instruction takes [µs]: an estimate for an H200, by the multiprocessors of the device.
std::vector<float> costs_of(const pen_model& m, const PictureStep& pictures) {
  constexpr double PRODUCTS = 400e6, ATTENTION = 200e6, WIDE_ATTENTION = 400e6, ELEMENTS = 3e5, LAUNCH = 3.0;  // per µs
  const double device = 132.0 / m.ctx.device.multiprocessors * (m.ctx.device.major >= 9 ? 1.0 : 2.5);
  std::vector<float> costs;
  for (const Instruction& instruction : m.program) {
    const double rows = pictures.rows[instruction.rows()];
    double us = rows * m.desc.hidden_dim / ELEMENTS;
    if (instruction.kind() == Kind::LINEAR) {
      us = 2.0 * rows * product_weights(instruction) / PRODUCTS;
    } else if (instruction.kind() == Kind::AMONG) {
      const auto& op = instruction.as<AmongOp>();
      const AmongTiles& tiles = pictures.tiles[op.list];
      const double speed = tiles.block_rows == AMONG_WIDE_ROWS ? WIDE_ATTENTION : ATTENTION;
      us = 2.0 * double(tiles.pairs) * op.among.num_heads * (op.among.dim + op.among.value_dim) / speed;
    }
    costs.push_back(float(device * us + LAUNCH));
  }
  return costs;
}

}  // namespace

PictureMemory::PictureMemory(Memory& memory, const uint32_t* most_rows)
    : zeros(memory, sizeof(uint32_t) * *std::max_element(most_rows, most_rows + PEN_NUM_ROW_SETS), true) {}

void encode(pen_model& m, const pen_pictures& p, float* out) {
  const ListUses uses(m, p);
  check_pictures(m, p, uses);
  Step step{};
  const PictureStep pictures = send(m, p, uses, step.view.grid);
  PictureMemory& memory = *m.pictures;
  step.view.positions = step.view.slot_mapping = memory.zeros.as<uint32_t>();
  PictureWork work{m, step, pictures, costs_of(m, pictures)};
  check(cudaEventRecord(memory.done.handle, m.stream.handle), "event");
  memory.last = m.stream.handle;
  try {
    Turns::of(m.ctx.device.id).run(work, m.stream.handle);
  } catch (...) {
    // What is queued already reads this call's lists.
    cudaEventSynchronize(memory.done.handle);
    throw;
  }
  if (memory.last != m.stream.handle) check(cudaStreamWaitEvent(m.stream.handle, memory.done.handle), "the order of slices");
  const Rows& rows = m.scratch.rows.at(m.desc.output);
  const size_t bytes = output_bytes(m, p);
  check(cudaMemcpyAsync(memory.out.as<float>(), rows.data.as<float>(), bytes, cudaMemcpyDeviceToHost, m.stream.handle), "copying rows");
  check(cudaEventRecord(memory.done.handle, m.stream.handle), "event");
  std::memset(out, 0, bytes);  // the system gives the pages while the device works
  check(cudaEventSynchronize(memory.done.handle), "pictures");
  std::memcpy(out, memory.out.as<float>(), bytes);
}

}  // namespace pen
