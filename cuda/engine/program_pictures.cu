// Compiles and runs the ops of pictures: those of encoders, and what a language model adds of their rows to further layers.
#include <algorithm>
#include <string>

#include "../embedding/embedding.h"
#include "encode.h"
#include "program.h"
#include "program_pictures.h"

namespace pen {

namespace {

void require(bool ok, const char* what) {
  if (!ok) throw StatusError(PEN_INVALID_ARG, what);
}

// The shared memory of a block with the fewest rows [bytes].
int least_shared(int dim) { return choose_among(dim, 64).bytes; }

}  // namespace

Instruction compile_add_slice(const Resolver& find, const pen_add_slice& op) {
  const Rows& out = find.buffer(op.out, PEN_F32);
  const size_t hidden = find.m.desc.hidden_dim;
  require(op.slice >= 1 && op.slice <= find.m.desc.slices && out.desc.width == hidden, "a slice of embeddings does not exist");
  const float* const slices = find.m.scratch.slices.as<float>();
  return {Kind::ADD_SLICE, AddSlice{slices + (op.slice - 1) * hidden, find.m.desc.slices * hidden, out.data.as<float>(), int(hidden)}};
}

void run_add_slice(const Instruction& instruction, const Pass& pass) {
  add_slice(pass.launch, instruction.as<AddSlice>(), pass.step.inputs, pass.tokens);
}

Instruction compile_patches(const Resolver& find, const pen_patches& op) {
  const bool halves = find.m.scratch.rows.at(op.out).desc.type == PEN_F16;
  const Rows& out = find.buffer(op.out, halves ? PEN_F16 : PEN_F32);
  require(op.size > 0 && uint64_t(3) * op.size * op.size <= out.desc.width, "patches do not fit their buffer");
  Patches to{};
  if (halves) to.out = out.data.as<__half>(); else to.floats = out.data.as<float>();
  to.ld = out.ld, to.size = int(op.size);
  to.mean[0] = op.mean0, to.mean[1] = op.mean1, to.mean[2] = op.mean2;
  to.deviation[0] = op.deviation0, to.deviation[1] = op.deviation1, to.deviation[2] = op.deviation2;
  return {Kind::PATCHES, to};
}

void run_patches(const Instruction& instruction, const Pass& pass) {
  write_patches(pass.launch, instruction.as<Patches>(), pass.pictures->pixels, pass.pictures->patches, pass.tokens);
}

Instruction compile_mix(const Resolver& find, const pen_mix& op) {
  const Rows& out = find.buffer(op.out, PEN_F32);
  require(op.parts > 0 && out.desc.width % op.parts == 0 && (op.in == PEN_NONE) != (op.table == PEN_NONE), "mixed rows have no parts");
  const uint32_t len = out.desc.width / op.parts;
  MixOp to{};
  to.list = op.list;
  to.mix = Mix{nullptr, out.data.as<float>(), int(len), out.ld, int(len), int(op.parts), op.interleaved != 0, op.add != 0};
  if (op.in != PEN_NONE) {
    const Rows& in = find.buffer(op.in, PEN_F32);
    require(in.desc.width == len, "mixed rows are of another width");
    to.mix.from = in.data.as<float>();
    to.mix.ld_from = in.ld;
    to.set = in.desc.rows;
  } else {
    const Tensor& table = find.m.tensors.at(op.table);
    const uint64_t floats = table.rows * table.cols * table.count;
    require(table.is_vector && floats % len == 0, "a table has other rows");
    to.mix.from = table.vector;
    to.table_rows = uint32_t(floats / len);
  }
  return {Kind::MIX, to};
}

void run_mix(const Instruction& instruction, const Pass& pass) {
  const auto& op = instruction.as<MixOp>();
  mix(pass.launch, op.mix, pass.pictures->terms[op.list], pass.tokens);
}

Instruction compile_among(const Resolver& find, const pen_among& op) {
  const Rows &q = find.buffer(op.q, PEN_F16), &k = find.buffer(op.k, PEN_F16), &v = find.buffer(op.v, PEN_F16);
  const Rows& out = find.buffer(op.out, PEN_F16);
  require(op.heads > 0 && op.kv_heads > 0 && op.heads % op.kv_heads == 0 && op.scale > 0.0f, "attention without heads");
  require(op.dim <= op.stride && op.value_dim <= op.value_stride && op.stride % 8 == 0 && op.value_stride % 8 == 0, "heads overlap");
  const bool fits = op.heads * op.stride <= uint32_t(q.ld) && op.kv_heads * op.stride <= uint32_t(k.ld) &&
                    op.kv_heads * op.value_stride <= uint32_t(v.ld) && op.heads * op.value_dim <= uint32_t(out.ld);
  require(fits && q.desc.rows == out.desc.rows && k.desc.rows == v.desc.rows, "attention among rows does not fit its buffers");
  const int dim = int(std::max(op.dim, op.value_dim));
  if (op.value_dim % 2 != 0 || dim > AMONG_DIM || least_shared(dim) > find.m.ctx.device.shared_block) {
    throw StatusError(PEN_UNSUPPORTED, "attention among rows with heads of " + std::to_string(op.dim) + " elements");
  }
  AmongOp to{};
  to.among = Among{q.data.as<__half>(), k.data.as<__half>(), v.data.as<__half>(), out.data.as<__half>(), q.ld, k.ld, v.ld, out.ld,
                   int(op.stride), int(op.value_stride), int(op.heads), int(op.kv_heads), int(op.dim), int(op.value_dim), op.scale};
  to.list = op.list;
  to.query_set = q.desc.rows;
  to.key_set = k.desc.rows;
  return {Kind::AMONG, to};
}

void run_among(const Instruction& instruction, const Pass& pass) {
  const auto& op = instruction.as<AmongOp>();
  const int* const rows = pass.pictures->rows;
  among(pass.launch, op.among, pass.pictures->tiles[op.list], rows[op.query_set], rows[op.key_set]);
}

}  // namespace pen
