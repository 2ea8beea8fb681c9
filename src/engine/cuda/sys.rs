//! The declarations of `cuda/include/penstock.h`, which documents them.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_void};

pub const PEN_ABI_VERSION: u32 = 4;

pub type pen_status = u32;
pub const PEN_OK: pen_status = 0;
pub const PEN_INVALID_ARG: pen_status = 1;
pub const PEN_UNSUPPORTED: pen_status = 2;
pub const PEN_OUT_OF_MEMORY: pen_status = 3;
pub const PEN_MISSING_TENSOR: pen_status = 4;
pub const PEN_CUDA: pen_status = 5;
pub const PEN_INTERNAL: pen_status = 6;

pub const PEN_MAX_LOGPROBS: usize = 20;
pub const PEN_POOL_NONE: u8 = 0;
pub const PEN_POOL_FIRST: u8 = 1;
pub const PEN_POOL_LAST: u8 = 2;
pub const PEN_POOL_MEAN: u8 = 3;
pub const PEN_POOL_COMPLETE: u8 = 4;
pub const PEN_SAMPLED_NONE: i32 = -1;
pub const PEN_SAMPLED_NOT_FINITE: i32 = -2;

#[repr(C)]
pub struct pen_ctx {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct pen_model {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct pen_kv {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct pen_layer_desc {
    pub window: u32,
    pub rope: u32,
}

#[repr(C)]
pub struct pen_tensor {
    pub slot: u32,
    pub layer: u32,
    pub r#type: u32,
}

#[repr(C)]
pub struct pen_model_desc {
    pub num_layers: u32,
    pub vocab_size: u32,
    pub hidden_dim: u32,
    pub num_heads: u32,
    pub num_kv_heads: u32,
    pub head_dim: u32,
    pub ffn_dim: u32,
    pub rope_dim: u32,
    pub rope_pairs: u32,
    pub activation: u32,
    pub layer_norm: u32,
    pub num_positions: u32,
    pub num_experts: u32,
    pub experts_used: u32,
    pub expert_ffn_dim: u32,
    pub normalise_experts: u32,
    pub norm_eps: f32,
    pub attn_scale: f32,
    pub embedding_scale: f32,
    pub attn_soft_cap: f32,
    pub final_soft_cap: f32,
    pub max_positions: u32,
    pub num_ropes: u32,
    pub rope_tables: *const f32,
    pub layers: *const pen_layer_desc,
    pub tensors: *const pen_tensor,
    pub num_tensors: u32,
    pub max_batch_tokens: u32,
    pub max_slots: u32,
    pub max_blocks: u32,
}

#[repr(C)]
#[derive(Debug, Default)]
pub struct pen_need {
    pub weights: u64,
    pub step_weights: u64,
    pub scratch: u64,
    pub kv_token: u64,
}

#[repr(C)]
pub struct pen_quant {
    pub r#type: u32,
    pub name: *const c_char,
    pub block_size: u32,
    pub block_bytes: u32,
}

#[repr(C)]
pub struct pen_slot_init {
    pub slot: u32,
    pub temperature: f32,
    pub top_p: f32,
    pub min_p: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub repetition_penalty: f32,
    pub top_k: u32,
    pub min_tokens: u32,
    pub seed: u64,
    pub prompt: *const u32,
    pub num_prompt: u32,
    pub generated: *const u32,
    pub num_generated: u32,
    pub bias_ids: *const u32,
    pub biases: *const f32,
    pub num_biases: u32,
    pub suppressed: *const u32,
    pub num_suppressed: u32,
}

#[repr(C)]
pub struct pen_batch {
    pub num_tokens: u32,
    pub num_seqs: u32,
    pub max_blocks: u32,
    pub num_init: u32,
    pub want_logits: u32,
    pub sample_later: u32,
    pub inputs: *const i32,
    pub positions: *const u32,
    pub cu_seqlens_q: *const u32,
    pub context_lens: *const u32,
    pub slot_mapping: *const u32,
    pub block_tables: *const u32,
    pub slots: *const u32,
    pub sample: *const u8,
    pub init: *const pen_slot_init,
    pub num_logprobs: *const i32,
    pub num_copies: u32,
    pub copies: *const u32,
    pub num_scored: u32,
    pub scored_rows: *const u32,
    pub scored_ids: *const u32,
    pub scored_logprobs: *const u32,
    pub pools: *const u8,
}

#[repr(C)]
pub struct pen_masks {
    pub num_masks: u32,
    pub num_seqs: u32,
    pub masks: *const u32,
    pub mask_of: *const i32,
}

#[repr(C)]
pub struct pen_output {
    pub step: u64,
    pub num_seqs: u32,
    pub sampled: *mut i32,
    pub logits: *mut f32,
    pub logprobs: *mut f32,
    pub logprob_ids: *mut i32,
    pub num_scored: u32,
    pub scored: *mut f32,
    pub scored_ids: *mut i32,
    pub pooled: *mut f32,
}

unsafe extern "C" {
    pub fn pen_abi_version() -> u32;
    pub fn pen_last_error() -> *const c_char;
    pub fn pen_device_count(count: *mut u32) -> pen_status;
    pub fn pen_quant_info(info: *mut pen_quant) -> pen_status;
    pub fn pen_ctx_create(device: u32, out: *mut *mut pen_ctx) -> pen_status;
    pub fn pen_ctx_destroy(ctx: *mut pen_ctx);
    pub fn pen_mem_info(
        ctx: *mut pen_ctx,
        free_bytes: *mut u64,
        total_bytes: *mut u64,
        held_bytes: *mut u64,
        name: *mut c_char,
        name_size: u32,
        copy_bytes_per_second: *mut f64,
    ) -> pen_status;
    pub fn pen_model_need(desc: *const pen_model_desc, need: *mut pen_need) -> pen_status;
    pub fn pen_model_begin(ctx: *mut pen_ctx, desc: *const pen_model_desc, out: *mut *mut pen_model) -> pen_status;
    pub fn pen_model_tensor(model: *mut pen_model, slot: u32, layer: u32, data: *const c_void, nbytes: u64) -> pen_status;
    pub fn pen_model_finish(model: *mut pen_model) -> pen_status;
    pub fn pen_model_destroy(model: *mut pen_model);
    pub fn pen_kv_create(model: *mut pen_model, num_blocks: u32, block_size: u32, out: *mut *mut pen_kv) -> pen_status;
    pub fn pen_kv_destroy(kv: *mut pen_kv);
    pub fn pen_submit(model: *mut pen_model, kv: *mut pen_kv, batch: *const pen_batch, step: *mut u64) -> pen_status;
    pub fn pen_sample(model: *mut pen_model, step: u64, masks: *const pen_masks) -> pen_status;
    pub fn pen_collect(model: *mut pen_model, out: *mut pen_output) -> pen_status;
}
