// The shapes of real models, for checks of decisions (choose.cu): those of config/catalogue.toml, and others that the documents measure.
#pragma once

#include "../quant/matrix.h"

namespace pen {

// `most`: the format of most matrices; `more`: that of V, down and the head, where a file type stores these with more bits.
struct RealModel {
  const char* name;
  FormatId most, more;
  int hidden, heads, kv_heads, head_dim, ffn, vocab;
  uint32_t window = 0;   // of the layers that have one
  bool gated = true;     // gate and up
  bool bidirectional = false;

  bool is_shaped_like(const RealModel& m) const {
    const bool same_rows = hidden == m.hidden && ffn == m.ffn && vocab == m.vocab && most == m.most && more == m.more;
    return same_rows && heads == m.heads && kv_heads == m.kv_heads && head_dim == m.head_dim && window == m.window;
  }
};

constexpr RealModel MODELS[] = {
    {"SmolLM2-135M Q4_1", FORMAT_Q4_MIN, FORMAT_Q4_MIN, 576, 9, 3, 64, 1536, 49152},
    {"Llama-3.2-1B F16", FORMAT_H16, FORMAT_H16, 2048, 32, 8, 64, 8192, 128256},
    {"Llama-3.1-8B Q8_0", FORMAT_Q8, FORMAT_Q8, 4096, 32, 8, 128, 14336, 128256},
    // config/catalogue.toml. Rows that are no multiple of 256 long take the types of 32 weights.
    {"smollm2:135m", FORMAT_Q5, FORMAT_Q8, 576, 9, 3, 64, 1536, 49152},
    {"smollm2:360m", FORMAT_Q5, FORMAT_Q8, 960, 15, 5, 64, 2560, 49152},
    {"smollm2:1.7b", FORMAT_Q4_MIN, FORMAT_Q6, 2048, 32, 32, 64, 8192, 49152},
    {"smollm3:3b", FORMAT_Q4_MIN, FORMAT_Q6, 2048, 16, 4, 128, 11008, 128256},
    {"qwen2.5:0.5b", FORMAT_Q5, FORMAT_Q8, 896, 14, 2, 64, 4864, 151936},
    {"qwen2.5:1.5b", FORMAT_Q4_MIN, FORMAT_Q6, 1536, 12, 2, 128, 8960, 151936},
    {"qwen2.5:3b", FORMAT_Q4_MIN, FORMAT_Q6, 2048, 16, 2, 128, 11008, 151936},
    {"qwen2.5:7b", FORMAT_Q4_MIN, FORMAT_Q6, 3584, 28, 4, 128, 18944, 152064},
    {"qwen2.5:14b", FORMAT_Q4_MIN, FORMAT_Q6, 5120, 40, 8, 128, 13824, 152064},
    {"qwen2.5-coder:0.5b", FORMAT_Q5, FORMAT_Q8, 896, 14, 2, 64, 4864, 151936},
    {"qwen2.5-coder:1.5b", FORMAT_Q4_MIN, FORMAT_Q6, 1536, 12, 2, 128, 8960, 151936},
    {"qwen2.5-coder:7b", FORMAT_Q4_MIN, FORMAT_Q6, 3584, 28, 4, 128, 18944, 152064},
    {"qwen2.5-coder:32b", FORMAT_Q4_MIN, FORMAT_Q6, 5120, 40, 8, 128, 27648, 152064},
    {"qwen3:0.6b", FORMAT_Q8, FORMAT_Q8, 1024, 16, 8, 128, 3072, 151936},
    {"qwen3:1.7b", FORMAT_Q8, FORMAT_Q8, 2048, 16, 8, 128, 6144, 151936},
    {"qwen3:4b", FORMAT_Q4_MIN, FORMAT_Q6, 2560, 32, 8, 128, 9728, 151936},
    {"qwen3:8b", FORMAT_Q4_MIN, FORMAT_Q6, 4096, 32, 8, 128, 12288, 151936},
    {"qwen3:14b", FORMAT_Q4_MIN, FORMAT_Q6, 5120, 40, 8, 128, 17408, 151936},
    {"qwen3:30b-a3b", FORMAT_Q4_MIN, FORMAT_Q6, 2048, 32, 4, 128, 768, 151936},
    {"qwen3:32b", FORMAT_Q4_MIN, FORMAT_Q6, 5120, 64, 8, 128, 25600, 151936},
    {"llama3.1:8b", FORMAT_Q4_MIN, FORMAT_Q6, 4096, 32, 8, 128, 14336, 128256},
    {"llama3.2:1b", FORMAT_Q4_MIN, FORMAT_Q6, 2048, 32, 8, 64, 8192, 128256},
    {"llama3.2:3b", FORMAT_Q4_MIN, FORMAT_Q6, 3072, 24, 8, 128, 8192, 128256},
    {"llama3.3:70b", FORMAT_Q4_MIN, FORMAT_Q6, 8192, 64, 8, 128, 28672, 128256},
    {"gemma2:2b", FORMAT_Q4_MIN, FORMAT_Q6, 2304, 8, 4, 256, 9216, 256000, 4096},
    {"gemma2:9b", FORMAT_Q4_MIN, FORMAT_Q6, 3584, 16, 8, 256, 14336, 256000, 4096},
    {"gemma2:27b", FORMAT_Q4_MIN, FORMAT_Q6, 4608, 32, 16, 128, 36864, 256000, 4096},
    {"gemma3:270m", FORMAT_Q5, FORMAT_Q8, 640, 4, 1, 256, 2048, 262144, 512},
    {"gemma3:1b", FORMAT_Q5, FORMAT_Q8, 1152, 4, 1, 256, 6912, 262144, 512},
    {"gemma3:4b", FORMAT_Q4_MIN, FORMAT_Q6, 2560, 8, 4, 256, 10240, 262208, 1024},
    {"gemma3:12b", FORMAT_Q4_MIN, FORMAT_Q6, 3840, 16, 8, 256, 15360, 262208, 1024},
    {"gemma3:27b", FORMAT_Q4_MIN, FORMAT_Q6, 5376, 32, 16, 128, 21504, 262208, 1024},
    {"phi3.5:3.8b", FORMAT_Q4_MIN, FORMAT_Q6, 3072, 32, 32, 96, 8192, 32064},
    {"phi4:14b", FORMAT_Q4_MIN, FORMAT_Q6, 5120, 40, 10, 128, 17920, 100352},
    {"mistral:7b", FORMAT_Q4_MIN, FORMAT_Q6, 4096, 32, 8, 128, 14336, 32768},
    {"mistral-nemo:12b", FORMAT_Q4_MIN, FORMAT_Q6, 5120, 32, 8, 128, 14336, 131072},
    {"mistral-small:24b", FORMAT_Q4_MIN, FORMAT_Q6, 5120, 32, 8, 128, 32768, 131072},
    {"deepseek-r1:1.5b", FORMAT_Q4_MIN, FORMAT_Q6, 1536, 12, 2, 128, 8960, 151936},
    {"deepseek-r1:7b", FORMAT_Q4_MIN, FORMAT_Q6, 3584, 28, 4, 128, 18944, 152064},
    {"deepseek-r1:8b", FORMAT_Q4_MIN, FORMAT_Q6, 4096, 32, 8, 128, 14336, 128256},
    {"deepseek-r1:14b", FORMAT_Q4_MIN, FORMAT_Q6, 5120, 40, 8, 128, 13824, 152064},
    {"olmo2:7b", FORMAT_Q4_MIN, FORMAT_Q6, 4096, 32, 32, 128, 11008, 100352},
    {"tinyllama:1.1b", FORMAT_Q4_MIN, FORMAT_Q6, 2048, 32, 4, 64, 5632, 32000},
    {"nomic-embed-text:v1.5", FORMAT_Q8, FORMAT_Q8, 768, 12, 12, 64, 3072, 30522, 0, true, true},
};

// Layers with experts: formats of gate and up and of down.
struct ExpertModel {
  const char* name;
  FormatId up, down;
  int experts, used, hidden, ffn;
  bool shared;
};
constexpr ExpertModel EXPERT_MODELS[] = {
    {"gpt-oss-20b", FORMAT_MXFP4, FORMAT_MXFP4, 32, 4, 2880, 2880, false},
    {"qwen3:30b-a3b", FORMAT_Q4_MIN, FORMAT_Q6, 128, 8, 2048, 768, false},
    {"Qwen3-Next-80B Q4_K_M", FORMAT_Q4_MIN, FORMAT_Q6, 512, 10, 2048, 512, true},
    {"GLM-4.5-Air Q4_K_M", FORMAT_Q4_MIN, FORMAT_Q5, 128, 8, 4096, 1408, true},
};

// Attention that only general.h's kernels compute.
struct GeneralModel {
  const char* name;
  int heads, kv_heads, key_dim, value_dim;
  bool one_cache;  // latent attention
  bool biased;     // a soft cap, ALiBi or sinks
  bool bidirectional;
};
constexpr GeneralModel GENERAL_MODELS[] = {
    {"nomic-embed-text:v1.5", 12, 12, 64, 64, false, false, true},
    {"DeepSeek-V2-Lite", 16, 1, 576, 512, true, false, false},
    {"DeepSeek-V3", 128, 1, 576, 512, true, false, false},
    {"heads of 512", 16, 2, 512, 512, false, false, false},
    {"MPT-7B", 32, 32, 128, 128, false, true, false},
};

}  // namespace pen
