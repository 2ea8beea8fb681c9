// Implements the C interface, the only extern "C". Turns every exception into a status and a message.
#include <algorithm>
#include <cstring>

#include "../linear/linear.h"
#include "encode.h"
#include "graphs.h"
#include "kernels.h"
#include "loop.h"
#include "step.h"

using namespace pen;

namespace {

thread_local std::string last_error;

// Runs the body of a call and turns what it throws into a status. Marks `ctx`, unless null, as lost if a kernel faulted. Such a fault is
// sticky for the process: every later call would fail, too, or wait for a device that no longer answers.
template <class F>
pen_status status_of(pen_ctx* ctx, F&& body) noexcept {
  pen_status status = PEN_INTERNAL;
  try {
    body();
    return PEN_OK;
  } catch (const StatusError& error) {
    last_error = error.what();
    status = error.status;
  } catch (const CudaError& error) {
    last_error = error.what();
    status = PEN_CUDA;
    if (error.code == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // this error is not sticky, but the next call would report it
      status = PEN_OUT_OF_MEMORY;
    }
  } catch (const std::bad_alloc&) {
    last_error = "out of host memory";
    status = PEN_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    last_error = error.what();
  } catch (...) {
    last_error = "unknown exception";
  }
  if (status == PEN_CUDA && ctx) ctx->lost = true;
  return status;
}

void use(const pen_ctx& ctx) {
  if (ctx.lost) throw StatusError(PEN_CUDA, "the device was lost by an earlier error");
  check(cudaSetDevice(ctx.device.id), "selecting the device");
}

// Waits until nothing uses the memory that is about to be freed. Returns at once for a lost device, which would never answer.
void settle(const pen_ctx& ctx) {
  cudaSetDevice(ctx.device.id);
  if (!ctx.lost) cudaDeviceSynchronize();
}

pen_ctx* context(pen_model* model) { return model ? &model->ctx : nullptr; }

void require(bool there) {
  if (!there) throw StatusError(PEN_INVALID_ARG, "a null pointer");
}

// Writes as much of a text as fits, and a null byte behind it.
void write_text(char* to, uint32_t size, const std::string& text) {
  if (!to || size == 0) return;
  std::strncpy(to, text.c_str(), size - 1);
  to[size - 1] = 0;
}

// Measures the bytes read and written per second by copies within the device's memory: the best of ten.
double copy_bandwidth(pen_ctx& ctx, size_t free_bytes) {
  const size_t size = std::min<size_t>(size_t(1) << 30, free_bytes / 4);
  const Buffer from(ctx.memory, size, true), to(ctx.memory, size, true);
  cudaEvent_t start, end;
  check(cudaEventCreate(&start), "event");
  check(cudaEventCreate(&end), "event");
  float best = 0;
  for (int i = 0; i < 10; i++) {
    check(cudaEventRecord(start), "event");
    check(cudaMemcpyAsync(to.as<uint8_t>(), from.as<uint8_t>(), size, cudaMemcpyDeviceToDevice), "copy");
    check(cudaEventRecord(end), "event");
    check(cudaEventSynchronize(end), "copy");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start, end), "event");
    if (i == 0 || milliseconds < best) best = milliseconds;
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  return 2.0 * double(size) / (best * 1e-3);
}

// Creates the cache with the graphs of decode steps over short contexts.
std::unique_ptr<pen_kv> create_cache(pen_model& model, const pen_kv_init& init) {
  const std::lock_guard alone(device_wide());
  auto kv = std::make_unique<pen_kv>(model, init.num_blocks, init.block_size);
  kv->resize(std::max(init.backed, 1u));
  check(cudaDeviceSynchronize(), "preparing the KV cache");
  warm_up(model, *kv);
  return kv;
}

}  // namespace

extern "C" {

const char* pen_last_error(void) { return last_error.c_str(); }

pen_status pen_device_count(uint32_t* count) {
  return status_of(nullptr, [&] {
    require(count);
    *count = 0;
    int devices = 0, driver = 0, runtime = 0;
    const cudaError_t code = cudaGetDeviceCount(&devices);
    const bool old = code == cudaErrorInsufficientDriver;
    if (old && cudaDriverGetVersion(&driver) == cudaSuccess && cudaRuntimeGetVersion(&runtime) == cudaSuccess) {
      const auto version = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
      // A driver that is not installed has version 0.
      if (driver == 0) throw StatusError(PEN_UNSUPPORTED, "no NVIDIA driver is installed");
      throw StatusError(PEN_UNSUPPORTED, "the driver supports CUDA " + version(driver) + " and this build needs " + version(runtime));
    }
    check(code, "counting devices");
    *count = uint32_t(devices);
  });
}

pen_status pen_quant_info(uint32_t abi_version, pen_quant* info) {
  return status_of(nullptr, [&] {
    require(info);
    if (abi_version != PEN_ABI_VERSION) {
      throw StatusError(PEN_UNSUPPORTED, "the CUDA side has interface version " + std::to_string(PEN_ABI_VERSION) + ", this program " +
                                             std::to_string(abi_version));
    }
    const QuantRow* row = quant_row(info->type);
    if (!row) throw StatusError(PEN_UNSUPPORTED, "this build does not know the type");
    info->name = row->name;
    info->block_size = uint32_t(row->block_size);
    info->block_bytes = uint32_t(row->block_bytes);
  });
}

pen_status pen_ctx_create(uint32_t device, pen_ctx** out) {
  return status_of(nullptr, [&] {
    const std::lock_guard alone(device_wide());
    require(out);
    check(cudaSetDevice(int(device)), "selecting the device");
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, int(device)), "device properties");
    if (properties.major * 10 + properties.minor < 75) {
      throw StatusError(PEN_UNSUPPORTED, std::string(properties.name) + " has no float16 tensor cores (compute capability 7.5 or later)");
    }
    auto ctx = std::make_unique<pen_ctx>(int(device), properties.name);
    check(cudaFree(nullptr), "creating the context");
    *out = ctx.release();
  });
}

void pen_ctx_destroy(pen_ctx* ctx) { delete ctx; }

pen_status pen_mem_info(pen_ctx* ctx, uint64_t* free_bytes, uint64_t* total_bytes, uint64_t* held_bytes, char* name, uint32_t name_size,
                        double* copy_bytes_per_second) {
  return status_of(ctx, [&] {
    const std::lock_guard alone(device_wide());
    require(ctx && free_bytes && total_bytes && held_bytes);
    use(*ctx);
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "device memory");
    *free_bytes = free;
    *total_bytes = total;
    *held_bytes = ctx->memory.held_bytes();
    write_text(name, name_size, ctx->name);
    if (copy_bytes_per_second) *copy_bytes_per_second = copy_bandwidth(*ctx, free);
  });
}

pen_status pen_model_need(const pen_model_desc* desc, pen_need* need) {
  return status_of(nullptr, [&] {
    require(desc && need);
    check_model(*desc);
    *need = need_of(*desc);
  });
}

pen_status pen_kernels(pen_ctx* ctx, const char* arch, const pen_model_desc* desc, const pen_load* load, uint32_t op, char* text,
                       uint32_t size) {
  return status_of(ctx, [&] {
    require((ctx || arch) && desc && load && text);
    check_model(*desc);
    if (ctx) use(*ctx);
    write_text(text, size, kernels_of(*desc, ctx ? product_device(ctx->device) : known_device(arch), *load, op));
  });
}

pen_status pen_model_begin(pen_ctx* ctx, const pen_model_desc* desc, pen_model** out) {
  return status_of(ctx, [&] {
    const std::lock_guard alone(device_wide());
    require(ctx && desc && out && (desc->rope_tables || desc->num_ropes == 0));
    use(*ctx);
    check_model(*desc);
    *out = new pen_model(*ctx, *desc);
  });
}

pen_status pen_model_tensor(pen_model* model, uint32_t tensor, uint32_t first, uint32_t count, const void* data, uint64_t nbytes) {
  return status_of(context(model), [&] {
    require(model && data && model->staging);
    use(model->ctx);
    load_tensor(*model, tensor, first, count, static_cast<const uint8_t*>(data), nbytes);
  });
}

pen_status pen_model_finish(pen_model* model) {
  return status_of(context(model), [&] {
    const std::lock_guard alone(device_wide());
    require(model && model->staging);
    use(model->ctx);
    finish_loading(*model);
  });
}

void pen_model_destroy(pen_model* model) {
  status_of(nullptr, [&] {
    const std::lock_guard alone(device_wide());
    if (!model) return;
    settle(model->ctx);
    delete model;
  });
}

pen_status pen_kv_create(pen_model* model, pen_kv_init* init, pen_kv** out) {
  return status_of(context(model), [&] {
    require(model && init && out);
    use(model->ctx);
    if (init->num_blocks == 0 || init->block_size == 0 || init->block_size % 32 != 0) {
      throw StatusError(PEN_INVALID_ARG, "KV blocks of " + std::to_string(init->block_size) + " tokens: expected a multiple of 32");
    }
    auto kv = create_cache(*model, *init);
    choose_loops(*model, *kv, *init);
    // Other models' threads continue meanwhile: each single capture takes the lock that keeps them from breaking it.
    const Captured made = capture_rest(*model, *kv, init->capture_seconds);
    const Captured loops = capture_loops(*model, *kv);
    init->loops = uint32_t(loops.graphs);
    init->loops_wanted = uint32_t(loops.wanted);
    init->backed = uint32_t(kv->backed);
    init->captured = uint32_t(made.graphs);
    init->wanted = uint32_t(made.wanted);
    *out = kv.release();
  });
}

pen_status pen_kv_resize(pen_kv* kv, uint32_t num_blocks, uint32_t* backed) {
  return status_of(kv ? &kv->model->ctx : nullptr, [&] {
    const std::lock_guard alone(device_wide());
    require(kv && backed);
    use(kv->model->ctx);
    // Block 0 is the placeholder in tables for entries that are not read.
    if (num_blocks != uint32_t(kv->backed)) kv->resize(std::max(num_blocks, 1u));
    *backed = uint32_t(kv->backed);
  });
}

void pen_kv_destroy(pen_kv* kv) {
  status_of(nullptr, [&] {
    const std::lock_guard alone(device_wide());
    if (!kv) return;
    settle(kv->model->ctx);
    delete kv;
  });
}

pen_status pen_adapter_load(pen_model* model, uint32_t place, const pen_change* changes, uint32_t num_changes) {
  return status_of(context(model), [&] {
    const std::lock_guard alone(device_wide());
    require(model && (changes || num_changes == 0));
    use(model->ctx);
    model->adapters.load(*model, place, changes, num_changes);
  });
}

pen_status pen_submit(pen_model* model, pen_kv* kv, const pen_batch* batch, uint64_t* step) {
  return status_of(context(model), [&] {
    require(model && kv && batch && step);
    use(model->ctx);
    *step = submit(*model, *kv, *batch);
  });
}

pen_status pen_sample(pen_model* model, uint64_t step, const pen_masks* masks) {
  return status_of(context(model), [&] {
    require(model && masks && masks->mask_of && (masks->masks || masks->num_masks == 0));
    use(model->ctx);
    sample_with_masks(*model, step, *masks);
  });
}

pen_status pen_collect(pen_model* model, pen_output* out) {
  return status_of(context(model), [&] {
    require(model && out && (out->sampled || out->num_sampled == 0));
    use(model->ctx);
    collect(*model, *out);
  });
}

pen_status pen_encode(pen_model* model, const pen_pictures* pictures, float* out) {
  return status_of(context(model), [&] {
    require(model && pictures && pictures->rows && pictures->pixels && pictures->patches && pictures->positions && out);
    require((pictures->terms || pictures->num_terms == 0) && (pictures->spans || pictures->num_spans == 0));
    use(model->ctx);
    encode(*model, *pictures, out);
  });
}

}  // extern "C"
