// Tells which kernels the ops of a model would run, by the decisions that their launches take.
#include "kernels.h"

#include <cstring>

#include "../attention/choose.h"
#include "../attention/general_choose.h"
#include "../experts/choose.h"
#include "../heads/choose.h"
#include "../sampling/choose.h"
#include "context.h"
#include "scratch.h"
#include "slicing.h"
#include "tensors.h"

namespace pen {

namespace {

// A model that is not loaded, and a step that is not run: `rows` rows of each of its sequences.
class Reader {
 public:
  Reader(const pen_model_desc& desc, const ProductDevice& device, const pen_load& load)
      : desc_(desc), device_(device), load_(load), tensors_(desc, nullptr), rows_(int(load.num_seqs * load.rows)) {}

  std::string op(const pen_op& op) const {
    switch (op.kind) {
      case PEN_OP_EMBED: return "embedding/embedding.cuh";
      case PEN_OP_NORMALISE: return norm(static_cast<const pen_normalise*>(op.args)->norm);
      case PEN_OP_GROUP_NORM: return "norm/group.cuh";
      case PEN_OP_LINEAR: return linear(*static_cast<const pen_linear*>(op.args));
      case PEN_OP_EACH_HEAD: return each_head(*static_cast<const pen_each_head*>(op.args));
      case PEN_OP_ACTIVATE: return activate(*static_cast<const pen_activate*>(op.args));
      case PEN_OP_HEADS: return heads(*static_cast<const pen_heads*>(op.args));
      case PEN_OP_ATTENTION: return attention(*static_cast<const pen_attention*>(op.args));
      case PEN_OP_CONVOLVE: return "recurrence/convolution.cuh";
      case PEN_OP_SCAN:
      case PEN_OP_DELTA: return "recurrence/recurrence.cuh";
      case PEN_OP_EXPERTS: return experts(*static_cast<const pen_experts*>(op.args));
      case PEN_OP_MAP:
      case PEN_OP_PREDICT:
      case PEN_OP_CORRECT:
      case PEN_OP_MATCH: return "elementwise/map.cuh";
      case PEN_OP_EXCHANGE: return "elementwise/exchange.cuh";
      case PEN_OP_ADD_SLICE: return "embedding/embedding.cuh";
      case PEN_OP_PATCHES:
      case PEN_OP_MIX: return "pictures/mix.cuh";
      case PEN_OP_AMONG: return "pictures/among.cuh";
      default: throw StatusError(PEN_INVALID_ARG, "op " + std::to_string(op.kind) + " does not exist");
    }
  }

  // Of the last row of each sequence.
  std::string head() const {
    const pen_head& head = desc_.head;
    if (head.w == PEN_NONE) return "";
    const Matrix& w = tensors_.matrix(head.w);
    std::string names = norm(head.norm) + ", " + product(product_shape({&w, 1}, int(load_.num_seqs)));
    if (head.bias != PEN_NONE || head.scale != 1.0f) names += ", elementwise/map.cuh";
    if (head.soft_cap > 0.0f) names += ", elementwise/elementwise.cuh";
    const SamplePlan plan = choose_sampling(int(load_.num_seqs), w.rows, false);
    return names + ", sampling/passes.cuh, sampling/draw.cuh" + (plan.drafts ? ", sampling/drafts.cuh" : "");
  }

 private:
  struct Segments {
    const Matrix* w;
    int count;
  };
  ProductShape product_shape(Segments segments, int rows) const {
    ProductShape shape;
    for (int i = 0; i < segments.count; i++) shape.w[i] = segments.w[i];
    shape.num_segments = segments.count, shape.num_tokens = rows, shape.slab_bytes = Scratch::workspace_bytes(desc_);
    return shape;
  }
  std::string product(const ProductShape& shape) const {
    return std::string("linear/") + product_row(choose(device_, shape).kernel).name;
  }

  static std::string norm(const pen_norm& norm) { return norm.kind == PEN_RMS_NORM ? "norm/rms.cuh" : "norm/layer.cuh"; }

  std::string linear(const pen_linear& op) const {
    Matrix w[MAX_SEGMENTS];
    int count = 0;
    for (const uint32_t tensor : {op.w0, op.w1, op.w2}) {
      if (tensor != PEN_NONE) w[count++] = tensors_.matrix(tensor);
    }
    ProductShape shape = product_shape({w, count}, rows_);
    shape.slicing = slicing_of(op, w[0].cols);
    if (op.norm.x == PEN_NONE) return product(shape);
    shape.normed = op.norm.kind == PEN_RMS_NORM && takes_norm(device_, shape);
    return (shape.normed ? "" : norm(op.norm) + ", ") + product(shape);
  }

  std::string each_head(const pen_each_head& op) const {
    const Matrix& w = tensors_.matrix(op.stack);
    const StackPlan plan = choose_stack(device_, w, rows_, int(op.heads));
    if (plan.whole) return "linear/hopper.cuh";
    return "experts/stack.cu, " + groups(w, plan.group, ceil_div(rows_, plan.group) * int(op.heads));
  }

  static std::string activate(const pen_activate& op) {
    return op.cutoff != 0.0f ? "elementwise/map.cuh, elementwise/elementwise.cuh" : "elementwise/elementwise.cuh";
  }

  std::string heads(const pen_heads& op) const {
    return choose_heads(rows_, int(op.heads), int(op.dim)).wide ? "heads/heads.cuh by block" : "heads/heads.cuh by warp";
  }

  std::string attention(const pen_attention& op) const {
    const pen_cache& cache = desc_.caches[op.cache];
    if (op.general) return general(op, cache);
    AttentionDevice device{device_};
    device.clusters = device.wide_clusters = device.warpgroups = device_.warpgroups;
    AttentionShape shape;
    shape.num_heads = int(op.heads), shape.num_kv_heads = int(cache.heads), shape.head_dim = int(cache.key_dim);
    shape.window = op.window, shape.workspace_bytes = Scratch::workspace_bytes(desc_);
    shape.num_seqs = int(load_.num_seqs), shape.max_query = int(load_.rows), shape.max_context = int(load_.context);
    const bool by_eighths = op.q_norm == PEN_NONE && op.k_norm == PEN_NONE && cache.key_dim % 8 == 0 &&
                            (op.rope == PEN_NONE || desc_.rope_dims[op.rope] % 8 == 0);
    const std::string finish = by_eighths ? "attention/qkv_rows.cuh, " : "attention/qkv.cuh, ";
    const bool has_fresh = op.qkv != PEN_NONE, prompt = load_.rows > 1;
    shape.fresh = has_fresh && !prompt, shape.by_eighths = shape.fresh && by_eighths;
    const AttentionPlan plan = prompt ? choose_prefill(device, shape) : choose_decode(device, shape);
    const bool before = has_fresh && (prompt || plan.fresh_before);
    return (before ? finish : "") + "attention/" + attention_row(plan.kernel).name + (plan.merges ? ", attention/merge.cuh" : "");
  }

  std::string general(const pen_attention& op, const pen_cache& cache) const {
    GeneralDevice device{device_};
    device.warpgroups = device_.warpgroups, device.clusters = device_.clusters * 2 / KV_SPLIT_TILES;
    const auto ld = [&](uint32_t buffer) {
      return int(round_up(desc_.buffers[buffer].width, K_TILE) * desc_.buffers[buffer].per_token);
    };
    GeneralShape shape;
    shape.num_heads = int(op.heads), shape.num_kv_heads = int(cache.heads), shape.head_dim = shape.k_dim = int(cache.key_dim);
    shape.value_dim = int(op.value_dim), shape.v_dim = int(cache.value_dim > 0 ? cache.value_dim : cache.key_dim);
    shape.window = op.window, shape.window_kind = Window(op.window_kind), shape.bidirectional = op.bidirectional != 0;
    shape.biased = op.soft_cap != 0.0f || op.alibi != 0.0f || op.sinks != PEN_NONE;
    shape.one_cache = cache.value_dim == 0, shape.packed_query = ld(op.q) == shape.num_heads * shape.head_dim;
    shape.wide_query = shape.head_dim % 8 == 0, shape.even_out = shape.value_dim % 2 == 0;
    shape.workspace_bytes = Scratch::workspace_bytes(desc_);
    shape.num_tokens = rows_, shape.num_seqs = int(load_.num_seqs);
    shape.max_query = int(load_.rows), shape.max_context = int(load_.context);
    const GeneralChoice choice = choose_general(device, shape);
    return std::string("attention/") + general_row(choice.kernel).name + (choice.merge_batch > 0 ? ", attention/general_merge.cuh" : "");
  }

  std::string groups(const Matrix& w, int group, int count) const {
    return expert_row(choose_groups(device_, w, group, count)).name;
  }

  std::string experts(const pen_experts& op) const {
    const bool fused = op.gate != PEN_NONE && tensors_.at(op.gate).placement == Placement::UPPER_HALF;
    ExpertShape shape;
    shape.gate_up = tensors_.matrix(fused ? op.gate : op.up), shape.down = tensors_.matrix(op.down);
    shape.num_rows = rows_, shape.num_experts = int(op.count), shape.used = int(op.used), shape.adjugates = op.chunk_group != 0;
    const bool may_be_few = fused && !op.chunk_group && !op.weigh_input;
    if (may_be_few && choose_experts(device_, shape) == ExpertKernel::FEW) return expert_row(ExpertKernel::FEW).name;
    const int count = op.chunk_group ? ceil_div(int(op.count), int(op.chunk_group)) : int(op.count), choices = rows_ * shape.used;
    const Groups all(choices, count, op.chunk_group ? choices : rows_, least_group(device_, shape.gate_up));
    return "experts/route.cuh, " + groups(shape.gate_up, all.size, all.most) + ", " + groups(shape.down, all.size, all.most);
  }

  const pen_model_desc& desc_;
  const ProductDevice& device_;
  const pen_load& load_;
  const Tensors tensors_;
  const int rows_;
};

}  // namespace

ProductDevice known_device(const char* arch) {
  std::string all;
  for (const KnownDevice& known : KNOWN_DEVICES) {
    if (!std::strcmp(known.arch, arch)) return product_device(known);
    all += (all.empty() ? "" : ", ") + std::string(known.arch) + " (" + known.name + ")";
  }
  throw StatusError(PEN_UNSUPPORTED, "no device of architecture " + std::string(arch) + " is known, expected one of " + all);
}

std::string kernels_of(const pen_model_desc& desc, const ProductDevice& device, const pen_load& load, uint32_t op) {
  if (op > desc.num_ops || load.num_seqs == 0 || load.rows == 0) throw StatusError(PEN_INVALID_ARG, "no such op, or a step without rows");
  const Reader reader(desc, device, load);
  return op == desc.num_ops ? reader.head() : reader.op(desc.ops[op]);
}

}  // namespace pen
