// Arrays that grow in place, through the driver's virtual memory functions.
#include "growing.h"

#include <type_traits>

#include "../device/driver.h"

namespace pen {

namespace {

// The largest piece of physical memory. Memory is released in whole pieces.
constexpr size_t LARGEST_PIECE = size_t(64) << 20;

template <class F>
bool look_up(const char* name, F& function) {
  function = driver_function<std::remove_pointer_t<F>>(name);
  return function != nullptr;
}

// Returns null if one of the functions is missing.
const Driver* entry_points() {
  static const Driver* const known = [] {
    static Driver d{};
    const bool all = look_up("cuDeviceGet", d.device) && look_up("cuDeviceGetAttribute", d.attribute) &&
                     look_up("cuMemGetAllocationGranularity", d.granularity) && look_up("cuMemAddressReserve", d.reserve) &&
                     look_up("cuMemAddressFree", d.unreserve) && look_up("cuMemCreate", d.create) &&
                     look_up("cuMemRelease", d.release) && look_up("cuMemMap", d.map) && look_up("cuMemUnmap", d.unmap) &&
                     look_up("cuMemSetAccess", d.access);
    return all ? &d : nullptr;
  }();
  return known;
}

CUmemAllocationProp pinned_to(int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  return prop;
}

// Throws PEN_OUT_OF_MEMORY for every driver error: the caller continues with the memory it has. Whatever the error, no kernel has failed.
void require(CUresult code, const char* what) {
  if (code != CUDA_SUCCESS) throw StatusError(PEN_OUT_OF_MEMORY, std::string(what) + " (driver status " + std::to_string(code) + ")");
}

Physical create(pen_ctx& ctx, const Driver& driver, size_t bytes) {
  Physical physical{0, bytes};
  const CUmemAllocationProp prop = pinned_to(ctx.device.id);
  require(driver.create(&physical.handle, bytes, &prop, 0), "device memory for the cache");
  ctx.memory.count(int64_t(bytes));
  return physical;
}

void destroy(pen_ctx& ctx, const Driver& driver, const Physical& physical) {
  driver.release(physical.handle);
  ctx.memory.count(-int64_t(physical.bytes));
}

}  // namespace

const Driver* Driver::of(int device) {
  const Driver* const found = entry_points();
  CUdevice handle = 0;
  int supported = 0;
  if (!found || found->device(&handle, device) != CUDA_SUCCESS) return nullptr;
  const auto attribute = CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
  if (found->attribute(&supported, attribute, handle) != CUDA_SUCCESS || !supported) return nullptr;
  const CUmemAllocationProp prop = pinned_to(device);
  size_t unit = 0;
  const bool known = found->granularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS;
  return known && unit > 0 && PAGE % unit == 0 ? found : nullptr;
}

ZeroPage::ZeroPage(pen_ctx& ctx, const Driver* driver) : ctx_(ctx), driver_(driver) {
  if (!driver) return;
  page_ = create(ctx, *driver, PAGE);
  try {
    // Maps the page for a moment, to write it once.
    Growing writable(ctx, driver, page_.handle);
    check(cudaMemset(writable.as<uint8_t>(), 0, PAGE), "zeroing device memory");
    check(cudaDeviceSynchronize(), "zeroing device memory");
  } catch (...) {
    destroy(ctx_, *driver_, page_);
    throw;
  }
}

ZeroPage::~ZeroPage() {
  if (driver_) destroy(ctx_, *driver_, page_);
}

Growing::Growing(pen_ctx& ctx, const Driver* driver, CUmemGenericAllocationHandle page) : ctx_(&ctx), driver_(driver), reserved_(PAGE) {
  require(driver->reserve(&base_, reserved_, PAGE, 0, 0), "addresses for the cache");
  try {
    map(base_, PAGE, page);
    zeros_to_ = PAGE;
  } catch (...) {
    free();
    throw;
  }
}

Growing::Growing(pen_ctx& ctx, const Driver* driver, const ZeroPage& page, size_t capacity, size_t zeros_at, size_t zeros)
    : ctx_(&ctx), driver_(driver), capacity_(capacity) {
  if (!driver) {
    whole_ = Buffer(ctx.memory, zeros_at + zeros, true);
    base_ = reinterpret_cast<CUdeviceptr>(whole_.as<uint8_t>());
    mapped_ = capacity;
    return;
  }
  zeros_from_ = zeros_to_ = zeros_at / PAGE * PAGE;
  reserved_ = round_up(zeros_at + zeros, PAGE);
  if (zeros_from_ < round_up(capacity, PAGE)) throw StatusError(PEN_INTERNAL, "zeros and the cache share a page");
  require(driver->reserve(&base_, reserved_, PAGE, 0, 0), "addresses for the cache");
  try {
    for (; zeros_to_ < reserved_; zeros_to_ += PAGE) map(base_ + zeros_to_, PAGE, page.handle());
  } catch (...) {
    free();
    throw;
  }
}

Growing& Growing::operator=(Growing&& other) noexcept {
  std::swap(ctx_, other.ctx_);
  std::swap(driver_, other.driver_);
  std::swap(base_, other.base_);
  std::swap(capacity_, other.capacity_);
  std::swap(reserved_, other.reserved_);
  std::swap(mapped_, other.mapped_);
  std::swap(zeros_from_, other.zeros_from_);
  std::swap(zeros_to_, other.zeros_to_);
  std::swap(pieces_, other.pieces_);
  std::swap(whole_, other.whole_);
  return *this;
}

Growing::~Growing() { free(); }

void Growing::free() {
  if (!driver_ || !base_) return;
  while (!pieces_.empty()) drop_last();
  for (; zeros_from_ < zeros_to_; zeros_from_ += PAGE) driver_->unmap(base_ + zeros_from_, PAGE);
  driver_->unreserve(base_, reserved_);
  base_ = 0;
}

void Growing::map(CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle handle) {
  require(driver_->map(at, bytes, 0, handle, 0), "mapping the cache");
  CUmemAccessDesc desc{};
  desc.location = pinned_to(ctx_->device.id).location;
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult code = driver_->access(at, bytes, &desc, 1);
  if (code != CUDA_SUCCESS) driver_->unmap(at, bytes);
  require(code, "access to the cache");
}

void Growing::add(size_t bytes, cudaStream_t stream) {
  const Physical piece = create(*ctx_, *driver_, bytes);
  try {
    map(base_ + mapped_, bytes, piece.handle);
  } catch (...) {
    destroy(*ctx_, *driver_, piece);
    throw;
  }
  pieces_.push_back(piece);
  mapped_ += bytes;
  check(cudaMemsetAsync(reinterpret_cast<void*>(base_ + mapped_ - bytes), 0, bytes, stream), "zeroing the cache");
}

void Growing::drop_last() {
  const Physical piece = pieces_.back();
  pieces_.pop_back();
  mapped_ -= piece.bytes;
  driver_->unmap(base_ + mapped_, piece.bytes);
  destroy(*ctx_, *driver_, piece);
}

void Growing::grow(size_t bytes, cudaStream_t stream) {
  if (!driver_) return;
  const size_t wanted = round_up(std::min(bytes, capacity_), PAGE), pieces = pieces_.size();
  try {
    while (mapped_ < wanted) add(std::min(wanted - mapped_, LARGEST_PIECE), stream);
  } catch (...) {
    // The new memory is still being zeroed.
    if (pieces_.size() > pieces) check(cudaStreamSynchronize(stream), "zeroing the cache");
    while (pieces_.size() > pieces) drop_last();
    throw;
  }
}

void Growing::shrink(size_t bytes) {
  while (!pieces_.empty() && mapped_ - pieces_.back().bytes >= bytes) drop_last();
}

}  // namespace pen
