// The instructions of picture encoders, which a step's lists of rows are checked against.
#pragma once

#include "../pictures/among.h"
#include "../pictures/mix.h"

namespace pen {

struct MixOp {
  Mix mix;
  uint32_t list;
  uint32_t set;         // whose rows it reads
  uint32_t table_rows;  // rows of the table that it reads instead; 0: none
};

struct AmongOp {
  Among among;
  uint32_t list, query_set, key_set;
};

}  // namespace pen
