//! Declares what steps take and give: the rest of the C interface is in `sys.rs`.

#[repr(C)]
pub struct pen_kv_init {
    pub num_blocks: u32,
    pub block_size: u32,
    pub backed: u32,
    pub captured: u32,
    pub wanted: u32,
    pub capture_seconds: f64,
    pub resident: u32,
    pub loop_turn: u32,
    pub loops: u32,
    pub loops_wanted: u32,
    pub step_seconds: f64,
    pub loop_seconds: f64,
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_row {
    pub slot: u32,
    pub input: i32,
    pub num_logprobs: i32,
    pub samples: u32,
    pub is_new: u32,
    pub length: u32,
    pub room: u32,
    pub position: u32,
    pub state_slot: u32,
    pub first_table: u32,
    pub num_tables: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_table {
    pub group: u32,
    pub first: u32,
    pub count: u32,
    pub at: u32,
}

#[repr(C)]
pub struct pen_batch {
    pub num_tokens: u32,
    pub num_seqs: u32,
    pub num_sampled: u32,
    pub num_embeddings: u32,
    pub max_blocks: u32,
    pub num_init: u32,
    pub want_logits: u32,
    pub sample_later: u32,
    pub inputs: *const i32,
    pub positions: *const u32,
    pub grid_positions: *const u32,
    pub token_types: *const u32,
    pub cu_seqlens_q: *const u32,
    pub context_lens: *const u32,
    pub slot_mapping: *const u32,
    pub block_tables: *const u32,
    pub slots: *const u32,
    pub sampled_rows: *const u32,
    pub init: *const pen_slot_init,
    pub num_logprobs: *const i32,
    pub num_copies: u32,
    pub copies: *const u32,
    pub state_slots: *const u32,
    pub num_state_copies: u32,
    pub state_copies: *const u32,
    pub num_scored: u32,
    pub scored_rows: *const u32,
    pub scored_ids: *const u32,
    pub scored_logprobs: *const u32,
    pub pools: *const u8,
    pub embeddings: *const f32,
    pub source: u32,
    pub num_tables: u32,
    pub num_blocks: u32,
    pub rows: *const pen_row,
    pub tables: *const pen_table,
    pub blocks: *const u32,
    pub num_runs: u32,
    pub runs: *const u32,
    pub loop_steps: u32,
    pub num_rounds: u32,
    pub adapters: *const i32,
    pub adapter_scales: *const f32,
}

#[repr(C)]
pub struct pen_change {
    pub tensor: u32,
    pub rows: u32,
    pub cols: u32,
    pub rank: u32,
    pub scale: f32,
    pub a: *const u16,
    pub b: *const u16,
}

#[repr(C)]
pub struct pen_masks {
    pub num_masks: u32,
    pub num_sampled: u32,
    pub masks: *const u32,
    pub mask_of: *const i32,
}

#[repr(C)]
pub struct pen_output {
    pub step: u64,
    pub ends_loops: u32,
    pub num_sampled: u32,
    pub goes_on: u32,
    pub sampled: *mut i32,
    pub logits: *mut f32,
    pub logprobs: *mut f32,
    pub logprob_ids: *mut i32,
    pub num_scored: u32,
    pub scored: *mut f32,
    pub scored_ids: *mut i32,
    pub pooled: *mut f32,
    pub stream: *mut f32,
}
