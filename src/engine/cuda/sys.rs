//! Declares the C interface `cuda/include/penstock.h`, which documents every item.

#![allow(non_camel_case_types, reason = "the names are those of the C header")]

mod pictures;
mod step;

use std::ffi::{c_char, c_void};

pub use pictures::{pen_add_slice, pen_among, pen_mix, pen_patch, pen_patches, pen_pictures, pen_span, pen_spans, pen_terms};
pub use step::{pen_batch, pen_change, pen_kv_init, pen_masks, pen_output, pen_row, pen_slot_init, pen_table};

pub const PEN_ABI_VERSION: u32 = 12;

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
pub const PEN_SAMPLED_NOT_FINITE: i32 = -2;
pub const PEN_SAMPLED_SKIPPED: i32 = -3;
pub const PEN_FROM_ARRAYS: u32 = 0;
pub const PEN_FROM_CHANGES: u32 = 1;
pub const PEN_FROM_SLOTS: u32 = 2;
pub const PEN_MAX_LOOP_STEPS: u32 = 64;
pub const PEN_MAX_ADAPTERS: u32 = 64;
pub const PEN_MAX_ROUNDS: u32 = 8;
pub const PEN_RESIDENT_OFF: u32 = 0;
pub const PEN_RESIDENT_AUTO: u32 = 1;
pub const PEN_RESIDENT_ON: u32 = 2;
pub const PEN_FIRST_EMBEDDING: i32 = -1073741824;

pub const PEN_NONE: u32 = 0xffffffff;
pub const PEN_ROWS_STEP: u32 = 0;
pub const PEN_ROWS_PATCHES: u32 = 1;
pub const PEN_ROWS_TOWER: u32 = 2;
pub const PEN_ROWS_CELLS: u32 = 3;
pub const PEN_ROWS_QUERIES: u32 = 4;
pub const PEN_ROWS_BROKEN: u32 = 5;
pub const PEN_NUM_ROW_SETS: usize = 6;
pub const PEN_VECTOR: u32 = 0;
pub const PEN_MATRIX: u32 = 1;
pub const PEN_UPPER_HALF: u32 = 2;
pub const PEN_LOWER_HALF: u32 = 3;
pub const PEN_F32: u32 = 0;
pub const PEN_F16: u32 = 1;
pub const PEN_RMS_NORM: u32 = 0;
pub const PEN_LAYER_NORM: u32 = 1;
pub const PEN_NO_NORM: u32 = 2;
pub const PEN_LENGTH: u32 = 3;
pub const PEN_STORE: u32 = 0;
pub const PEN_ADD: u32 = 1;
pub const PEN_HALVES_COLUMNS: u32 = 8192;
pub const PEN_SILU_MUL: u32 = 2;
pub const PEN_GELU_MUL: u32 = 3;
pub const PEN_SILU: u32 = 0;
pub const PEN_GELU: u32 = 1;
pub const PEN_GELU_ERF: u32 = 2;
pub const PEN_RELU: u32 = 3;
pub const PEN_RELU_SQUARED: u32 = 4;
pub const PEN_SWIGLU_CLAMPED: u32 = 5;
pub const PEN_XIELU: u32 = 6;
pub const PEN_IDENTITY: u32 = 7;
pub const PEN_SIGMOID: u32 = 8;
pub const PEN_TANH: u32 = 9;
pub const PEN_SOFTPLUS: u32 = 10;
pub const PEN_EXP: u32 = 11;
pub const PEN_GELU_QUICK: u32 = 12;
pub const PEN_PAIRS_ADJACENT: u32 = 0;
pub const PEN_PAIRS_HALVES: u32 = 1;
pub const PEN_PAIRS_QUARTERS: u32 = 2;
pub const PEN_SLIDING: u32 = 0;
pub const PEN_CHUNKED: u32 = 1;
pub const PEN_SYMMETRIC: u32 = 2;
pub const PEN_SIGHT_CAUSAL: u32 = 0;
pub const PEN_SIGHT_WHOLE: u32 = 1;
pub const PEN_SIGHT_LATER: u32 = 2;
pub const PEN_GATE_SOFTMAX: u32 = 0;
pub const PEN_GATE_SIGMOID: u32 = 1;
pub const PEN_GATE_SOFTMAX_OF_CHOSEN: u32 = 2;
pub const PEN_OP_EMBED: u32 = 0;
pub const PEN_OP_NORMALISE: u32 = 1;
pub const PEN_OP_GROUP_NORM: u32 = 2;
pub const PEN_OP_LINEAR: u32 = 3;
pub const PEN_OP_EACH_HEAD: u32 = 4;
pub const PEN_OP_ACTIVATE: u32 = 5;
pub const PEN_OP_MAP: u32 = 6;
pub const PEN_OP_HEADS: u32 = 7;
pub const PEN_OP_ATTENTION: u32 = 8;
pub const PEN_OP_CONVOLVE: u32 = 9;
pub const PEN_OP_SCAN: u32 = 10;
pub const PEN_OP_DELTA: u32 = 11;
pub const PEN_OP_EXPERTS: u32 = 12;
pub const PEN_OP_PREDICT: u32 = 13;
pub const PEN_OP_CORRECT: u32 = 14;
pub const PEN_OP_MATCH: u32 = 15;
pub const PEN_OP_EXCHANGE: u32 = 16;
pub const PEN_OP_ADD_SLICE: u32 = 17;
pub const PEN_OP_PATCHES: u32 = 18;
pub const PEN_OP_MIX: u32 = 19;
pub const PEN_OP_AMONG: u32 = 20;

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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_tensor {
    pub kind: u32,
    pub r#type: u32,
    pub rows: u32,
    pub cols: u32,
    pub count: u32,
    pub read: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_buffer {
    pub r#type: u32,
    pub width: u32,
    pub per_token: u32,
    pub rows: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_part {
    pub buffer: u32,
    pub first: u32,
    pub stride: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_cache {
    pub heads: u32,
    pub key_dim: u32,
    pub value_dim: u32,
    pub group: u32,
    pub place: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_group {
    pub window: u32,
    pub chunked: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_norm {
    pub kind: u32,
    pub x: u32,
    pub branch: u32,
    pub branch_weight: u32,
    pub x_out: u32,
    pub weight: u32,
    pub bias: u32,
    pub eps: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_embed {
    pub table: u32,
    pub types: u32,
    pub positions: u32,
    pub out: u32,
    pub pads_embeddings: u32,
    pub scale: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_normalise {
    pub norm: pen_norm,
    pub out: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_group_norm {
    pub r#in: pen_part,
    pub out: pen_part,
    pub kind: u32,
    pub heads: u32,
    pub dim: u32,
    pub weight: u32,
    pub bias: u32,
    pub own: u32,
    pub eps: f32,
    pub length: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_linear {
    pub norm: pen_norm,
    pub r#in: u32,
    pub first: u32,
    pub w0: u32,
    pub w1: u32,
    pub w2: u32,
    pub offset1: u32,
    pub offset2: u32,
    pub out: u32,
    pub epilogue: u32,
    pub slices: u32,
    pub halves: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_exchange {
    pub part0: u32,
    pub part1: u32,
    pub part2: u32,
    pub part3: u32,
    pub part4: u32,
    pub part5: u32,
    pub part6: u32,
    pub part7: u32,
    pub num_parts: u32,
    pub out0: u32,
    pub out1: u32,
    pub out2: u32,
    pub out3: u32,
    pub out4: u32,
    pub out5: u32,
    pub out6: u32,
    pub out7: u32,
    pub add: u32,
    pub halves: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_each_head {
    pub stack: u32,
    pub r#in: u32,
    pub out: u32,
    pub heads: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_activate {
    pub gate_up: u32,
    pub gate_bias: u32,
    pub up_bias: u32,
    pub out: u32,
    pub dim: u32,
    pub gated: u32,
    pub activation: u32,
    pub cutoff: f32,
    pub xielu0: f32,
    pub xielu1: f32,
    pub xielu2: f32,
    pub xielu3: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_map {
    pub r#in: pen_part,
    pub by: pen_part,
    pub out: pen_part,
    pub heads: u32,
    pub dim: u32,
    pub bias: u32,
    pub f: u32,
    pub scale: u32,
    pub scale_group: u32,
    pub then: u32,
    pub g: u32,
    pub add: u32,
    pub factor: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_heads {
    pub r#in: pen_part,
    pub out: pen_part,
    pub heads: u32,
    pub dim: u32,
    pub bias: u32,
    pub norm: u32,
    pub norm_dim: u32,
    pub weight: u32,
    pub own: u32,
    pub norm_bias: u32,
    pub norm_behind: u32,
    pub rope: u32,
    pub rope_first: u32,
    pub rope_pairs: u32,
    pub cache: u32,
    pub values: u32,
    pub clamp: f32,
    pub eps: f32,
    pub temperature_scale: f32,
    pub temperature_floor: f32,
    pub temperature_offset: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_attention {
    pub qkv: u32,
    pub q: u32,
    pub out: u32,
    pub cache: u32,
    pub heads: u32,
    pub value_dim: u32,
    pub q_bias: u32,
    pub k_bias: u32,
    pub v_bias: u32,
    pub q_norm: u32,
    pub k_norm: u32,
    pub rope: u32,
    pub rope_halves: u32,
    pub general: u32,
    pub window: u32,
    pub window_kind: u32,
    pub bidirectional: u32,
    pub run_sight: u32,
    pub sinks: u32,
    pub eps: f32,
    pub scale: f32,
    pub soft_cap: f32,
    pub alibi: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_state {
    pub layer: u32,
    pub first: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_convolve {
    pub r#in: pen_part,
    pub out: pen_part,
    pub state: pen_state,
    pub kernel: u32,
    pub bias: u32,
    pub channels: u32,
    pub taps: u32,
    pub silu: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_scan {
    pub x: pen_part,
    pub b: pen_part,
    pub c: pen_part,
    pub factors: pen_part,
    pub steps: pen_part,
    pub state: pen_state,
    pub constant_factors: u32,
    pub a: u32,
    pub by_channel: u32,
    pub group: u32,
    pub heads: u32,
    pub keys: u32,
    pub values: u32,
    pub out: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_delta {
    pub q: pen_part,
    pub k: pen_part,
    pub v: pen_part,
    pub decay: pen_part,
    pub beta: pen_part,
    pub state: pen_state,
    pub by_key: u32,
    pub tiled: u32,
    pub heads: u32,
    pub key_heads: u32,
    pub keys: u32,
    pub values: u32,
    pub out: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_experts {
    pub scores: u32,
    pub r#in: u32,
    pub out: u32,
    pub add: u32,
    pub count: u32,
    pub used: u32,
    pub gating: u32,
    pub normalise: u32,
    pub groups: u32,
    pub groups_used: u32,
    pub choice_bias: u32,
    pub output_scales: u32,
    pub chunk_group: u32,
    pub gate: u32,
    pub up: u32,
    pub down: u32,
    pub dim: u32,
    pub hidden: u32,
    pub gate_bias: u32,
    pub up_bias: u32,
    pub down_bias: u32,
    pub activation: u32,
    pub weigh_input: u32,
    pub shared: u32,
    pub shared_router: u32,
    pub mean_shared: u32,
    pub scale: f32,
    pub factor: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_predict {
    pub streams: u32,
    pub router: u32,
    pub coefficients: u32,
    pub hidden: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_correct {
    pub streams: u32,
    pub x: u32,
    pub router: u32,
    pub coefficients: u32,
    pub hidden: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_match {
    pub r#in: pen_part,
    pub like: pen_part,
    pub out: pen_part,
    pub dim: u32,
    pub add: u32,
}

#[repr(C)]
pub struct pen_op {
    pub kind: u32,
    pub rows: u32,
    pub args: *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_head {
    pub norm: pen_norm,
    pub w: u32,
    pub bias: u32,
    pub scale: f32,
    pub soft_cap: f32,
}

#[repr(C)]
pub struct pen_model_desc {
    pub vocab_size: u32,
    pub hidden_dim: u32,
    pub max_positions: u32,
    pub rope_dims: *const u32,
    pub rope_tables: *const f32,
    pub rope_axes: *const u8,
    pub tensors: *const pen_tensor,
    pub buffers: *const pen_buffer,
    pub caches: *const pen_cache,
    pub groups: *const pen_group,
    pub states: *const u32,
    pub ops: *const pen_op,
    pub inputs: *const u32,
    pub head: pen_head,
    pub output: u32,
    pub num_ropes: u32,
    pub num_tensors: u32,
    pub num_buffers: u32,
    pub num_caches: u32,
    pub num_groups: u32,
    pub num_states: u32,
    pub num_ops: u32,
    pub num_inputs: u32,
    pub max_batch_tokens: u32,
    pub max_slots: u32,
    pub max_blocks: u32,
    pub state_slots: u32,
    pub slices: u32,
    pub most_rows: *const u32,
}

#[repr(C)]
#[derive(Debug, Default)]
pub struct pen_need {
    pub weights: u64,
    pub step_weights: u64,
    pub scratch: u64,
    pub kv_token: u64,
    pub state: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pen_load {
    pub num_seqs: u32,
    pub rows: u32,
    pub context: u32,
}

#[repr(C)]
pub struct pen_quant {
    pub r#type: u32,
    pub name: *const c_char,
    pub block_size: u32,
    pub block_bytes: u32,
}

unsafe extern "C" {
    pub fn pen_last_error() -> *const c_char;
    pub fn pen_device_count(count: *mut u32) -> pen_status;
    pub fn pen_quant_info(abi_version: u32, info: *mut pen_quant) -> pen_status;
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
    pub fn pen_kernels(
        ctx: *mut pen_ctx,
        arch: *const c_char,
        desc: *const pen_model_desc,
        load: *const pen_load,
        op: u32,
        text: *mut c_char,
        size: u32,
    ) -> pen_status;
    pub fn pen_model_begin(ctx: *mut pen_ctx, desc: *const pen_model_desc, out: *mut *mut pen_model) -> pen_status;
    pub fn pen_model_tensor(model: *mut pen_model, tensor: u32, first: u32, count: u32, data: *const c_void, nbytes: u64) -> pen_status;
    pub fn pen_model_finish(model: *mut pen_model) -> pen_status;
    pub fn pen_model_destroy(model: *mut pen_model);
    pub fn pen_kv_create(model: *mut pen_model, init: *mut pen_kv_init, out: *mut *mut pen_kv) -> pen_status;
    pub fn pen_kv_resize(kv: *mut pen_kv, num_blocks: u32, backed: *mut u32) -> pen_status;
    pub fn pen_kv_destroy(kv: *mut pen_kv);
    pub fn pen_adapter_load(model: *mut pen_model, place: u32, changes: *const pen_change, num_changes: u32) -> pen_status;
    pub fn pen_submit(model: *mut pen_model, kv: *mut pen_kv, batch: *const pen_batch, step: *mut u64) -> pen_status;
    pub fn pen_sample(model: *mut pen_model, step: u64, masks: *const pen_masks) -> pen_status;
    pub fn pen_collect(model: *mut pen_model, out: *mut pen_output) -> pen_status;
    pub fn pen_encode(model: *mut pen_model, pictures: *const pen_pictures, out: *mut f32) -> pen_status;
}
