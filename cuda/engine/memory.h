// Device memory, pinned memory, streams and events, freed in destructors.
#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "../device/error.h"

namespace pen {

// The driver hands out memory in these units. A smaller request silently takes a whole unit.
constexpr size_t PAGE = size_t(2) << 20;

// Device memory with a count of what the driver took for it. Large pieces are whole pages. Small pieces share a page, which is filled from
// its start and freed with its last piece.
class Memory {
 public:
  uint64_t held_bytes() const { return held_bytes_; }
  // Counts memory that was taken from the driver elsewhere, or given back (negative).
  void count(int64_t bytes) { held_bytes_ += uint64_t(bytes); }
  // The memory that the driver takes for a piece of this size [bytes].
  static size_t taken(size_t size) { return is_small(rounded(size)) ? rounded(size) : round_up(size, PAGE); }
  static size_t rounded(size_t size) { return round_up(size > 0 ? size : 1, 256); }

  void* allocate(size_t size) { return is_small(size) ? part_of_a_page(size) : pages(round_up(size, PAGE)); }
  void free(void* data, size_t size) { is_small(size) ? free_part(data) : free_pages(data, round_up(size, PAGE)); }

 private:
  struct Page {
    void* data;
    size_t used;
    int pieces;
  };

  static bool is_small(size_t size) { return size < PAGE / 2; }
  void* pages(size_t bytes) {
    void* data = nullptr;
    check(cudaMalloc(&data, bytes), "device memory");
    held_bytes_ += bytes;
    return data;
  }
  void free_pages(void* data, size_t bytes) {
    cudaFree(data);
    held_bytes_ -= bytes;
  }
  void* part_of_a_page(size_t size) {
    const std::lock_guard lock(mutex_);
    if (shared_.empty() || shared_.back().used + size > PAGE) shared_.push_back({pages(PAGE), 0, 0});
    Page& page = shared_.back();
    void* data = static_cast<uint8_t*>(page.data) + page.used;
    page.used += size;
    page.pieces++;
    return data;
  }
  void free_part(void* data) {
    const std::lock_guard lock(mutex_);
    const auto holds = [&](const Page& p) { return reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(p.data) < PAGE; };
    const auto page = std::find_if(shared_.begin(), shared_.end(), holds);
    if (page == shared_.end() || --page->pieces > 0) return;
    free_pages(page->data, PAGE);
    shared_.erase(page);
  }

  std::atomic<uint64_t> held_bytes_{0};
  std::mutex mutex_;
  std::vector<Page> shared_;  // guarded by the mutex
};

// A piece of device memory.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Memory& memory, size_t size, bool zeroed = false) : memory_(&memory), size_(Memory::rounded(size)) {
    data_ = memory.allocate(size_);
    if (zeroed) check(cudaMemset(data_, 0, size_), "zeroing device memory");
  }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() {
    if (data_) memory_->free(data_, size_);
  }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t size() const { return size_; }

 private:
  Memory* memory_ = nullptr;
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Hands out a model's buffers. Without memory, it only adds up their sizes, so that each size is written down once.
class Allocator {
 public:
  explicit Allocator(Memory* memory) : memory_(memory) {}
  Buffer zeroed(size_t size) { return take(size, true); }
  Buffer raw(size_t size) { return take(size, false); }
  size_t bytes() const { return bytes_; }

 private:
  Buffer take(size_t size, bool zeroed) {
    bytes_ += Memory::taken(size);
    return memory_ ? Buffer(*memory_, size, zeroed) : Buffer();
  }

  Memory* memory_;
  size_t bytes_ = 0;
};

// Pinned host memory, which the device's copy engine and kernels can access directly.
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

// Which stream's blocks a device runs first.
enum class Priority { LOW, USUAL };

struct Stream {
  cudaStream_t handle = nullptr;
  explicit Stream(Priority priority = Priority::USUAL) {
    int low = 0, high = 0;
    check(cudaDeviceGetStreamPriorityRange(&low, &high), "priorities of streams");
    // CUDA's own default is the lowest one.
    check(cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking, priority == Priority::LOW ? low : high), "stream");
  }
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
