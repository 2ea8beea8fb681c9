// A picture encoder's step: the rows of its pictures, and which of them see each other or are mixed.
#pragma once

#include <vector>

#include "../pictures/among.h"
#include "../pictures/mix.h"
#include "instruction.h"

struct pen_model;

namespace pen {

// The pictures of a step on the device.
struct PictureStep {
  int rows[PEN_NUM_ROW_SETS];
  const uint8_t* pixels;
  const pen_patch* patches;
  std::vector<MixTerms> terms;    // of each list
  std::vector<AmongTiles> tiles;  // of each list
};

// What a picture encoder holds between steps. Its memory grows with the largest step so far.
struct PictureMemory {
  Buffer zeros;  // first positions, and slots, of any set's rows
  Buffer lists;
  Pinned pinned, out;
  Event done;                    // what was queued last has run
  cudaStream_t last = nullptr;   // where it was queued

  PictureMemory(Memory& memory, const uint32_t* most_rows);
};

// Runs the encoder's program and waits for the rows of its output.
void encode(pen_model& model, const pen_pictures& pictures, float* out);

}  // namespace pen
