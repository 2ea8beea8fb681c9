// Shared by the checks of choose.cu: devices, the count of failures, and the lines that they print.
#pragma once

#include <cstdio>
#include <cstring>
#include <string>

#include "../linear/choose.h"

namespace pen {

struct Device {
  const char* name;
  ProductDevice device;
};
constexpr int MOST_ROWS = 4096;

inline int failures = 0;
inline void expect(bool good, const char* what, const std::string& where, int rows) {
  if (good) return;
  if (failures++ < 20) std::printf("FAIL %s, %d rows: %s\n", where.c_str(), rows, what);
}

template <class Kernel>
void expect_row(const KernelRow<Kernel>& row, Kernel kernel, const std::string& where, int rows) {
  expect(row.kernel == kernel && row.name && row.when && row.why, "the table does not name the kernel", where, rows);
}

// From which number on each kernel runs.
class Line {
 public:
  void add(int from, const char* name) {
    if (last_ && !std::strcmp(name, last_)) return;
    text_ += (last_ ? ", " : "") + std::to_string(from) + " " + name;
    last_ = name;
  }
  void print(const std::string& where) const { std::printf("%s: %s\n", where.c_str(), text_.c_str()); }

 private:
  std::string text_;
  const char* last_ = nullptr;
};

}  // namespace pen
