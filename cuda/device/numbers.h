// Constants and helpers that every file needs, also those that a host's compiler compiles alone.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define PEN_ANYWHERE __host__ __device__
#else
#define PEN_ANYWHERE
#endif

namespace pen {

constexpr int WARP = 32;

PEN_ANYWHERE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
PEN_ANYWHERE constexpr size_t round_up(size_t a, size_t b) { return (a + b - 1) / b * b; }

}  // namespace pen
