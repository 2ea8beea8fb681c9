// The device, its memory and the ledger of what the engine holds there.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "../include/penstock.h"
#include "../ops/common.cuh"

struct pen_ctx {
  int device = 0;
  std::string name;
  uint64_t total_bytes = 0;
  std::atomic<uint64_t> held_bytes{0};  // by pen::Buffer
};

namespace pen {

// An error with a status of its own.
struct StatusError : std::runtime_error {
  pen_status status;
  StatusError(pen_status status, const std::string& what) : std::runtime_error(what), status(status) {}
};

// A piece of device memory, counted in the ledger. Zeroed on request.
class Buffer {
 public:
  Buffer() = default;
  Buffer(pen_ctx& ctx, size_t size, bool zeroed = false) : ctx_(&ctx), size_(round_up(size > 0 ? size : 1, 256)) {
    check(cudaMalloc(&data_, size_), "device memory");
    ctx.held_bytes += size_;
    if (zeroed) check(cudaMemset(data_, 0, size_), "zeroing device memory");
  }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(ctx_, other.ctx_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() {
    if (!data_) return;
    cudaFree(data_);
    ctx_->held_bytes -= size_;
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t size() const { return size_; }

 private:
  pen_ctx* ctx_ = nullptr;
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Pinned host memory, which the device copies from and to by itself.
class Pinned {
 public:
  Pinned() = default;
  explicit Pinned(size_t size) : size_(size) { check(cudaHostAlloc(&data_, size, cudaHostAllocDefault), "pinned host memory"); }
  Pinned(Pinned&& other) noexcept { *this = std::move(other); }
  Pinned& operator=(Pinned&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Pinned() {
    if (data_) cudaFreeHost(data_);
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

struct Stream {
  cudaStream_t handle = nullptr;
  Stream() { check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "stream"); }
  Stream(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(handle); }
};

struct Event {
  cudaEvent_t handle = nullptr;
  Event() { check(cudaEventCreateWithFlags(&handle, cudaEventDisableTiming), "event"); }
  Event(const Event&) = delete;
  ~Event() { cudaEventDestroy(handle); }
};

}  // namespace pen
