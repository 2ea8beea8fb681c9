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

// The arguments that a step passes to the instructions that it runs.
struct Pass {
  const pen_kv& kv;
  const Step& step;
  Launch launch;
  int tokens;
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
  // The arguments, which are those of the kind.
  template <class Args>
  const Args& as() const {
    return *reinterpret_cast<const Args*>(args_);
  }

 private:
  static constexpr size_t MAX_BYTES = 1008;  // of arguments; those of experts are the longest

  Kind kind_;
  alignas(16) std::byte args_[MAX_BYTES];
};

}  // namespace pen
