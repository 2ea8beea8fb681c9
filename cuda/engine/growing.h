// Arrays of device memory that grow and shrink in place. Their addresses are reserved once, and memory is mapped to a leading part of them.
// Captured graphs hold the addresses, which never change.
#pragma once

#include <cuda.h>

#include <vector>

#include "context.h"

namespace pen {

// The driver's functions for virtual memory. They are looked up at run time, so the program starts without a driver.
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

  // Returns null if the driver lacks one of them, or if the device cannot map memory.
  static const Driver* of(int device);
};

// Physical memory, mapped or not.
struct Physical {
  CUmemGenericAllocationHandle handle;
  size_t bytes;
};

// A page of zeros that is mapped wherever it is needed and never written.
class ZeroPage {
 public:
  ZeroPage(pen_ctx& ctx, const Driver* driver);  // null driver: holds nothing
  ZeroPage(const ZeroPage&) = delete;
  ~ZeroPage();
  CUmemGenericAllocationHandle handle() const { return page_.handle; }

 private:
  pen_ctx& ctx_;
  const Driver* driver_;
  Physical page_{};
};

// An array whose first `capacity` bytes may have memory. The `zeros` bytes from `zeros_at` always read as zeros. Without the driver's
// functions, the whole array has memory from the start.
class Growing {
 public:
  Growing() = default;
  Growing(pen_ctx& ctx, const Driver* driver, const ZeroPage& page, size_t capacity, size_t zeros_at, size_t zeros);
  // Maps the page of zeros alone, so that it can be written.
  Growing(pen_ctx& ctx, const Driver* driver, CUmemGenericAllocationHandle page);
  Growing(Growing&& other) noexcept { *this = std::move(other); }
  Growing& operator=(Growing&& other) noexcept;
  ~Growing();

  // Maps zeroed memory to the first `bytes` bytes, by work queued on the stream. Throws PEN_OUT_OF_MEMORY if there is too little. Then the
  // array is unchanged.
  void grow(size_t bytes, cudaStream_t stream);
  // Unmaps memory from the array's end, in whole pieces, as long as the first `bytes` bytes keep theirs. Nothing on the device may use the
  // unmapped memory.
  void shrink(size_t bytes);
  // Leading bytes that have memory, at most `capacity`.
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
  std::vector<Physical> pieces_;          // in order, from the array's start
  Buffer whole_;                          // used without the driver's functions
};

}  // namespace pen
