// Launches rows.cuh.
#pragma once

#include "linear.h"

namespace pen {

void linear_rows(const Launch& launch, const Linear& args, const RowsPlan& plan);

}  // namespace pen
