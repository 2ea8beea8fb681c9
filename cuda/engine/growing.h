// Arrays of device memory that grow and shrink in place: their addresses are reserved once, and memory is mapped behind a leading part of
// them. Captured graphs hold the addresses, which never change.
#pragma once

#include <cuda.h>

#include <vector>

#include "context.h"

namespace pen {

// The driver's functions for virtual memory. They are looked up while the program runs, so that it starts without a driver.
struct Driver {
  decltype(&::cuDeviceGet) device;
  decltype(&::cuDeviceGetAttribute) attribute;
  decltype(&::cuMemGetAllocationGranularity) granularity;
  decltype(&::cuMemAddressReserve) reserve;
  decltype(&::cuMemAddressFree) unreserve;
  decltype(&::cuMemCreate) create;
  decltype(&::cuMemRelease) release;
  decltype(&::cuMemMap) map;
  decltype(&::cuMemUnmap) unmap;
  decltype(&::cuMemSetAccess) access;

  // Null: the driver has not all of them, or the device cannot map memory.
  static const Driver* of(int device);
};

// Physical memory, mapped or not.
struct Physical {
  CUmemGenericAllocationHandle handle;
  size_t bytes;
};

// A page of zeros, which is mapped as often as it is needed and never written.
class ZeroPage {
 public:
  ZeroPage(pen_ctx& ctx, const Driver* driver);  // null: holds nothing
  ZeroPage(const ZeroPage&) = delete;
  ~ZeroPage();
  CUmemGenericAllocationHandle handle() const { return page_.handle; }

 private:
  pen_ctx& ctx_;
  const Driver* driver_;
  Physical page_{};
};

// An array whose first `capacity` bytes may have memory behind them. From `zeros_at` on, `zeros` bytes can always be read as zeros.
// Without a driver for it, the whole array has memory from the start.
class Growing {
 public:
  Growing() = default;
  Growing(pen_ctx& ctx, const Driver* driver, const ZeroPage& page, size_t capacity, size_t zeros_at, size_t zeros);
  // The page alone, to be written before it is one of zeros.
  Growing(pen_ctx& ctx, const Driver* driver, CUmemGenericAllocationHandle page);
  Growing(Growing&& other) noexcept { *this = std::move(other); }
  Growing& operator=(Growing&& other) noexcept;
  ~Growing();

  // Puts zeroed memory behind the first `bytes` bytes, by work that is queued on the stream. Throws PEN_OUT_OF_MEMORY if there is too
  // little; then the array is as it was.
  void grow(size_t bytes, cudaStream_t stream);
  // Takes memory from behind the array's end, whole pieces at a time, as long as the first `bytes` bytes keep theirs. Nothing on the
  // device may use what is taken.
  void shrink(size_t bytes);
  // Leading bytes with memory behind them, at most `capacity`.
  size_t backed() const { return std::min(mapped_, capacity_); }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(base_);
  }

 private:
  void add(size_t bytes, cudaStream_t stream);
  void drop_last();
  void map(CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle handle);
  void free();

  pen_ctx* ctx_ = nullptr;
  const Driver* driver_ = nullptr;
  CUdeviceptr base_ = 0;
  size_t capacity_ = 0, reserved_ = 0, mapped_ = 0;
  size_t zeros_from_ = 0, zeros_to_ = 0;  // where the page of zeros is mapped
  std::vector<Physical> pieces_;          // from the array's start on
  Buffer whole_;                          // without a driver
};

}  // namespace pen
