//! Declares the ops of pictures, and what picture encoders take.

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_add_slice {
    pub slice: u32,
    pub out: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_patches {
    pub out: u32,
    pub size: u32,
    pub mean0: f32,
    pub mean1: f32,
    pub mean2: f32,
    pub deviation0: f32,
    pub deviation1: f32,
    pub deviation2: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_mix {
    pub r#in: u32,
    pub table: u32,
    pub out: u32,
    pub parts: u32,
    pub interleaved: u32,
    pub add: u32,
    pub list: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_among {
    pub q: u32,
    pub k: u32,
    pub v: u32,
    pub out: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub dim: u32,
    pub value_dim: u32,
    pub stride: u32,
    pub value_stride: u32,
    pub list: u32,
    pub scale: f32,
}

#[repr(C)]
pub struct pen_terms {
    pub num_parts: u32,
    pub num_terms: u32,
    pub ends: *const u32,
    pub rows: *const u32,
    pub weights: *const f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_span {
    pub first: u32,
    pub rows: u32,
    pub first_key: u32,
    pub keys: u32,
}

#[repr(C)]
pub struct pen_spans {
    pub num_spans: u32,
    pub spans: *const pen_span,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct pen_patch {
    pub first: u32,
    pub line: u32,
}

#[repr(C)]
pub struct pen_pictures {
    pub num_pixels: u32,
    pub num_terms: u32,
    pub num_spans: u32,
    pub rows: *const u32,
    pub pixels: *const u8,
    pub patches: *const pen_patch,
    pub positions: *const u32,
    pub terms: *const pen_terms,
    pub spans: *const pen_spans,
}
