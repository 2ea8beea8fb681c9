// A row of a table of kernels, of which each choose.cu has one.
#pragma once

#include <algorithm>
#include <cstddef>

namespace pen {

// Where a kernel is, for which shapes it runs, and why.
template <class Kernel>
struct KernelRow {
  Kernel kernel;
  const char *name, *when, *why;
};

// A kernel that the table lacks gets the last row, which the checks in bench/choose.cu notice.
template <class Kernel, size_t N>
const KernelRow<Kernel>& row_of(const KernelRow<Kernel> (&table)[N], Kernel kernel) {
  return *std::find_if(table, table + N - 1, [=](const KernelRow<Kernel>& row) { return row.kernel == kernel; });
}

}  // namespace pen
