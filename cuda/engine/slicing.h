// How a product of the interface cuts its columns.
#pragma once

#include "../linear/linear.h"
#include "context.h"

namespace pen {

static_assert(PEN_HALVES_COLUMNS == HALVES_K_TILES * K_TILE, "the interface and the kernels agree");

// Throws if no kernel cuts and adds so many columns so.
inline Slicing slicing_of(const pen_linear& op, int cols) {
  Slicing slicing;
  slicing.halves = op.halves != 0;
  for (slicing.bits = 3; slicing.bits > 0 && uint32_t(slicing.count()) != op.slices;) slicing.bits--;
  const bool halves = !slicing.halves || (op.slices == SLICES && op.epilogue <= PEN_ADD && cols >= HALVES_K_TILES * K_TILE);
  if (uint32_t(slicing.count()) != op.slices || !halves) {
    throw StatusError(PEN_INVALID_ARG, "a product in " + std::to_string(op.slices) + " slices, which no kernel adds so");
  }
  return slicing;
}

}  // namespace pen
