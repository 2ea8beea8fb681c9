// A step as plain instructions: a kind and its arguments, run from a table of functions (program.cu).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../device/launch.h"
#include "metadata.h"

struct pen_kv;

namespace pen {

struct PictureStep;
class Adapters;

// The arguments that a step passes to the instructions that it runs.
struct Pass {
  const pen_kv* kv;  // null: a picture encoder's program, which has no cache
  const Step& step;
  Launch launch;
  int tokens;        // rows that the instruction works on
  const PictureStep* pictures = nullptr;
  const Adapters* adapters = nullptr;  // null: no row of the step has an adapter
};

// Which function runs an instruction.
enum class Kind : uint32_t {
  EMBED,
  NORMALISE,
  GROUP_NORM,
  LINEAR,
  EACH_HEAD,
  ACTIVATE,
  MAP,
  HEADS,
  ATTENTION,
  GENERAL_ATTENTION,
  CONVOLVE,
  SCAN,
  DELTA,
  EXPERTS,
  PREDICT,
  CORRECT,
  MATCH,
  EXCHANGE,
  ADD_SLICE,
  PATCHES,
  MIX,
  AMONG,
  COUNT,
};

// An op with the tensors and buffers that it names. The addresses hold as long as the model.
class Instruction {
 public:
  template <class Args>
  Instruction(Kind kind, const Args& args) : kind_(kind) {
    static_assert(std::is_trivially_copyable_v<Args>, "arguments are plain data");
    static_assert(sizeof(Args) <= sizeof(args_) && alignof(Args) <= alignof(Instruction), "arguments fit");
    std::memcpy(args_, &args, sizeof(Args));
  }
  Kind kind() const { return kind_; }
  // The set of rows that it works on: PEN_ROWS_*.
  uint32_t rows() const { return rows_; }
  void set_rows(uint32_t rows) { rows_ = rows; }
  // The arguments, which are those of the kind.
  template <class Args>
  const Args& as() const {
    return *reinterpret_cast<const Args*>(args_);
  }

 private:
  static constexpr size_t MAX_BYTES = 1008;  // of arguments; those of experts are the longest

  Kind kind_;
  uint32_t rows_ = PEN_ROWS_STEP;
  alignas(16) std::byte args_[MAX_BYTES];
};

}  // namespace pen
