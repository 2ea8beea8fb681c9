// The device, its memory and the ledger of what the engine holds there.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../include/penstock.h"
#include "../ops/common.cuh"

namespace pen {

// What the driver hands out: asked for in other sizes it takes as much and does not say so.
constexpr size_t PAGE = size_t(2) << 20;

// A page that small buffers share, filled from its start and freed with the last of them.
struct Page {
  void* data;
  size_t used;
  int buffers;
};

}  // namespace pen

struct pen_ctx {
  int device = 0;
  std::string name;
  uint64_t total_bytes = 0;
  std::atomic<uint64_t> held_bytes{0};  // by pen::Buffer: what the driver took for it
  std::atomic<bool> lost{false};        // a call failed with PEN_CUDA: so do all that follow
  std::mutex mutex;
  std::vector<pen::Page> pages;  // guarded by the mutex
};

namespace pen {

// Held by whoever waits for the whole device, allocates or copies outside of a stream, and by whoever captures a graph: the first would
// break the second, even from another model's thread.
inline std::recursive_mutex& device_wide() {
  static std::recursive_mutex mutex;
  return mutex;
}

// An error with a status of its own.
struct StatusError : std::runtime_error {
  pen_status status;
  StatusError(pen_status status, const std::string& what) : std::runtime_error(what), status(status) {}
};

// A piece of device memory, counted in the ledger. Zeroed on request. Whole pages where it is large, so that the ledger holds what
// the driver took; a part of one where it is small.
class Buffer {
 public:
  Buffer() = default;
  Buffer(pen_ctx& ctx, size_t size, bool zeroed = false) : ctx_(&ctx), size_(round_up(size > 0 ? size : 1, 256)) {
    data_ = size_ < PAGE / 2 ? part_of_a_page() : pages(round_up(size_, PAGE));
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
    if (data_ && size_ >= PAGE / 2) free_pages(data_, round_up(size_, PAGE));
    if (data_ && size_ < PAGE / 2) free_part();
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t size() const { return size_; }

 private:
  void* pages(size_t bytes) {
    void* data = nullptr;
    check(cudaMalloc(&data, bytes), "device memory");
    ctx_->held_bytes += bytes;
    return data;
  }
  void free_pages(void* data, size_t bytes) {
    cudaFree(data);
    ctx_->held_bytes -= bytes;
  }
  void* part_of_a_page() {
    std::lock_guard lock(ctx_->mutex);
    if (ctx_->pages.empty() || ctx_->pages.back().used + size_ > PAGE) ctx_->pages.push_back({pages(PAGE), 0, 0});
    Page& page = ctx_->pages.back();
    void* data = static_cast<uint8_t*>(page.data) + page.used;
    page.used += size_;
    page.buffers++;
    return data;
  }

  void free_part() {
    std::lock_guard lock(ctx_->mutex);
    const auto holds = [&](const Page& p) { return reinterpret_cast<uintptr_t>(data_) - reinterpret_cast<uintptr_t>(p.data) < PAGE; };
    const auto page = std::find_if(ctx_->pages.begin(), ctx_->pages.end(), holds);
    if (page == ctx_->pages.end() || --page->buffers > 0) return;
    free_pages(page->data, PAGE);
    ctx_->pages.erase(page);
  }

  pen_ctx* ctx_ = nullptr;
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Pinned host memory, which the device copies from and to by itself, and kernels write to.
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
