//! [`Op`]: an op with its arguments.

use std::ptr;

use super::super::sys;

macro_rules! ops {
    ($($name:ident($args:ident) = $kind:ident,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Op {
            $($name(sys::$args),)*
        }

        impl Op {
            pub fn name(&self) -> &'static str {
                match self {
                    $(Op::$name(_) => stringify!($name),)*
                }
            }

            /// The op in the C side's form, for the rows of a set. It points into `self`.
            pub fn raw(&self, rows: u32) -> sys::pen_op {
                match self {
                    $(Op::$name(args) => sys::pen_op { kind: sys::$kind, rows, args: ptr::from_ref(args).cast() },)*
                }
            }
        }

        $(impl From<sys::$args> for Op {
            fn from(args: sys::$args) -> Self {
                Op::$name(args)
            }
        })*
    };
}

ops! {
    Embed(pen_embed) = PEN_OP_EMBED,
    Normalise(pen_normalise) = PEN_OP_NORMALISE,
    GroupNorm(pen_group_norm) = PEN_OP_GROUP_NORM,
    Linear(pen_linear) = PEN_OP_LINEAR,
    EachHead(pen_each_head) = PEN_OP_EACH_HEAD,
    Activate(pen_activate) = PEN_OP_ACTIVATE,
    Map(pen_map) = PEN_OP_MAP,
    Heads(pen_heads) = PEN_OP_HEADS,
    Attention(pen_attention) = PEN_OP_ATTENTION,
    Convolve(pen_convolve) = PEN_OP_CONVOLVE,
    Scan(pen_scan) = PEN_OP_SCAN,
    Delta(pen_delta) = PEN_OP_DELTA,
    Experts(pen_experts) = PEN_OP_EXPERTS,
    Predict(pen_predict) = PEN_OP_PREDICT,
    Correct(pen_correct) = PEN_OP_CORRECT,
    Match(pen_match) = PEN_OP_MATCH,
    Exchange(pen_exchange) = PEN_OP_EXCHANGE,
    AddSlice(pen_add_slice) = PEN_OP_ADD_SLICE,
    Patches(pen_patches) = PEN_OP_PATCHES,
    Mix(pen_mix) = PEN_OP_MIX,
    Among(pen_among) = PEN_OP_AMONG,
}
