//! Chooses the type of each tensor of a model. The mixtures are those of llama.cpp's file types, so that a file has the size and the
//! quality that users expect from its name.

use crate::file_type::FileType;

const Q4_0: u32 = 2;
const Q5_0: u32 = 6;
const Q5_1: u32 = 7;
const Q8_0: u32 = 8;
const Q2_K: u32 = 10;
const Q3_K: u32 = 11;
const Q4_K: u32 = 12;
const Q5_K: u32 = 13;
const Q6_K: u32 = 14;
const IQ4_NL: u32 = 20;
const IQ4_XS: u32 = 23;
const TQ1_0: u32 = 34;
const TQ2_0: u32 = 35;
const MXFP4: u32 = 39;
const F16: u32 = 1;

/// The properties of a model that the rules depend on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traits {
    pub is_falcon: bool,
    pub num_layers: usize,
    pub num_experts: usize,
    /// Query heads per key-value head.
    pub heads_per_kv: usize,
    /// Whether the output matrix is the token embedding.
    pub is_tied: bool,
}

impl Traits {
    /// Whether the model is shaped like Llama 70B. Such models share values between so many heads that values deserve more bits.
    fn is_70b(&self) -> bool {
        self.num_layers == 80 && self.heads_per_kv == 8
    }
}

/// The role of a tensor in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Output,
    Embedding,
    Value,
    KeyOrQuery,
    Qkv,
    AttentionOutput,
    Down,
    Experts,
    Other,
}

impl Role {
    pub fn of(name: &str) -> Role {
        let is = |part: &str| name.contains(part);
        match name {
            "output.weight" => Role::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Role::Embedding,
            _ if is("_exps.") && is("ffn_down") => Role::Down,
            _ if is("_exps.") => Role::Experts,
            _ if is("attn_v.weight") || is("attn_kv_b.weight") || is("attn_v_b.weight") => Role::Value,
            _ if is("attn_k.weight") || is("attn_q.weight") => Role::KeyOrQuery,
            _ if is("attn_qkv.weight") => Role::Qkv,
            _ if is("attn_output.weight") => Role::AttentionOutput,
            _ if is("ffn_down") => Role::Down,
            _ => Role::Other,
        }
    }
}

/// Whether a layer's tensors deserve more bits: the first and the last eighth of the layers, and every third layer between them.
fn is_worth_more(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// The type of a tensor, the `index`th of `count` with its role, with rows of `cols` weights.
pub fn type_of(kind: &FileType, role: Role, (index, count): (usize, usize), cols: u64, traits: &Traits) -> u32 {
    if kind.base == 0 || kind.base == F16 || kind.base == 30 {
        return kind.base;
    }
    let wanted = if role == Role::Output || role == Role::Embedding && traits.is_tied {
        output(kind, cols, traits)
    } else {
        inner(kind, role, (index, count), traits)
    };
    fallback(wanted, cols)
}

fn output(kind: &FileType, cols: u64, traits: &Traits) -> u32 {
    match kind.base {
        MXFP4 => Q8_0,
        _ if traits.is_falcon || !cols.is_multiple_of(256) => Q8_0,
        Q8_0 => Q8_0,
        _ => Q6_K,
    }
}

fn inner(kind: &FileType, role: Role, (index, count): (usize, usize), traits: &Traits) -> u32 {
    let base = kind.base;
    if base == MXFP4 {
        // MXFP4 is for experts. The other tensors get 8 bits.
        return if matches!(role, Role::Experts) || role == Role::Down && traits.num_experts > 0 { MXFP4 } else { Q8_0 };
    }
    match role {
        Role::Embedding if matches!(base, TQ1_0 | TQ2_0) => Q4_K,
        Role::Value => value(kind, (index, count), traits),
        Role::KeyOrQuery if traits.num_experts == 8 => Q8_0,
        Role::Down => down(kind, (index, count), traits),
        Role::AttentionOutput => attention_output(kind, traits),
        Role::Qkv if kind.is(&["Q3_K_M", "Q3_K_L"]) => Q4_K,
        Role::Qkv if kind.is(&["Q4_K_M"]) => Q5_K,
        Role::Qkv if kind.is(&["Q5_K_M"]) => Q6_K,
        _ => base,
    }
}

fn value(kind: &FileType, (index, count): (usize, usize), traits: &Traits) -> u32 {
    let shared = traits.heads_per_kv >= 4;
    let wanted = match kind.name {
        "Q2_K" if shared => Q4_K,
        "Q2_K" => Q3_K,
        "Q2_K_S" if shared => Q4_K,
        "Q3_K_M" if index < 2 => Q5_K,
        "Q3_K_M" => Q4_K,
        "Q3_K_L" => Q5_K,
        "IQ4_NL" | "IQ4_XS" if shared => Q5_K,
        "Q4_K_M" | "Q5_K_M" if is_worth_more(index, count) => Q6_K,
        "Q4_K_S" if index < 4 => Q5_K,
        _ => kind.base,
    };
    match wanted {
        _ if traits.num_experts == 8 => Q8_0,
        Q3_K | Q4_K if traits.is_70b() => Q5_K,
        _ => wanted,
    }
}

fn down(kind: &FileType, (index, count): (usize, usize), traits: &Traits) -> u32 {
    let (falcon, more) = (traits.is_falcon, is_worth_more(index, count));
    match kind.name {
        "Q2_K" => Q3_K,
        "Q2_K_S" if index < count / 8 => Q4_K,
        "Q3_K_M" if index < count / 16 => Q5_K,
        "Q3_K_M" if !falcon || more => Q4_K,
        "Q3_K_L" => {
            if falcon {
                Q4_K
            } else {
                Q5_K
            }
        }
        "Q4_K_M" if falcon && index < count / 16 => Q6_K,
        "Q4_K_M" if falcon && more => Q5_K,
        "Q4_K_M" | "Q5_K_M" if more && !(falcon && kind.name == "Q4_K_M") => Q6_K,
        "IQ4_NL" | "IQ4_XS" if !falcon && index < count / 8 => Q5_K,
        "Q4_K_S" if !falcon && index < count / 8 => Q5_K,
        _ => kind.base,
    }
}

fn attention_output(kind: &FileType, traits: &Traits) -> u32 {
    if traits.is_falcon {
        return if kind.name == "Q3_K_L" { Q4_K } else { kind.base };
    }
    if traits.num_experts == 8 {
        let small = kind.is(&["Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS"]);
        return if small { Q5_K } else { kind.base };
    }
    match kind.name {
        "Q2_K" => Q3_K,
        "Q3_K_M" => Q4_K,
        "Q3_K_L" => Q5_K,
        _ => kind.base,
    }
}

/// The type that replaces `wanted` if rows are not whole blocks of it.
fn fallback(wanted: u32, cols: u64) -> u32 {
    let blocks_of_256 = matches!(wanted, Q2_K..=Q6_K | IQ4_XS | TQ1_0 | TQ2_0);
    let replaced = match wanted {
        _ if !blocks_of_256 || cols.is_multiple_of(256) => wanted,
        Q2_K | Q3_K | IQ4_XS => IQ4_NL,
        TQ1_0 | TQ2_0 => Q4_0,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        _ => Q8_0,
    };
    let is_whole = cols.is_multiple_of(32);
    if is_whole { replaced } else { F16 }
}
