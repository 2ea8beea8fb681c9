//! One row per family of picture encoders.

use super::family::{ClassRow, Family, Filter, Places, Rotation, Step};
use crate::arch::{Activation, Arch, NormKind};
use crate::archs::COMMON;
use crate::tensor_roles::TensorRole::{self, *};

/// The names of a tower's tensors, without the prefix, where they differ from those of a language model.
const NAMES: &[(TensorRole, &str)] = &[
    (AttnNorm, "blk.{}.ln1.weight"),
    (AttnNormBias, "blk.{}.ln1.bias"),
    (AttnOutput, "blk.{}.attn_out.weight"),
    (AttnOutputBias, "blk.{}.attn_out.bias"),
    (PostAttnNorm, "blk.{}.attn_post_norm.weight"),
    (FfnNorm, "blk.{}.ln2.weight"),
    (FfnNormBias, "blk.{}.ln2.bias"),
    (PostFfnNorm, "blk.{}.ffn_post_norm.weight"),
];

/// The same in old files.
const OLD_NAMES: &[(TensorRole, &str)] = &[
    (AttnNorm, "blk.{}.ln1.weight"),
    (AttnNormBias, "blk.{}.ln1.bias"),
    (AttnOutput, "blk.{}.attn_out.weight"),
    (AttnOutputBias, "blk.{}.attn_out.bias"),
    (FfnNorm, "blk.{}.ln2.weight"),
    (FfnNormBias, "blk.{}.ln2.bias"),
    (FfnUp, "blk.{}.ffn_down.weight"),
    (FfnUpBias, "blk.{}.ffn_down.bias"),
    (FfnDown, "blk.{}.ffn_up.weight"),
    (FfnDownBias, "blk.{}.ffn_up.bias"),
];

/// Layers with biased layer norms and a plain feed-forward part.
const PLAIN: Arch = Arch {
    name: "clip.vision",
    norm: NormKind::Layer,
    gated: false,
    bidirectional: true,
    required: &[AttnNorm, AttnNormBias, FfnNorm, FfnNormBias],
    optional: &[],
    renamed: NAMES,
    prefix: "v.",
    ..COMMON
};

/// Layers with RMS norms and a gated feed-forward part.
const GATED: Arch = Arch { norm: NormKind::Rms, gated: true, required: &[AttnNorm, FfnNorm], ..PLAIN };

/// An architecture of layers, as files of today and old files name its tensors.
const fn both(arch: Arch) -> [Arch; 2] {
    [arch, Arch { renamed: OLD_NAMES, ..arch }]
}

const LAYER: NormKind = NormKind::Layer;
const RMS: NormKind = NormKind::Rms;

/// The values that most families share. A row states the differences.
const FAMILY: Family = Family {
    name: "",
    languages: &[],
    towers: both(PLAIN),
    larger: None,
    gelu: Activation::Gelu,
    class_row: ClassRow::None,
    places: Places::None,
    rotation: Rotation::None,
    merge: ("", 1),
    windows: false,
    centred: false,
    is_encoder_free: false,
    projector: &[],
    optional: &[PatchEmbdBias],
};

const SPATIAL: &str = "spatial_merge_size";
const FACTOR: &str = "projector.scale_factor";

const POST_LAYER_NORM: Step = Step::Norm(LAYER, PostNorm, Some(PostNormBias));
const POST_RMS_NORM: Step = Step::Norm(RMS, PostNorm, None);
const JOIN: Step = Step::Join { interleaved: false };
const GELU: Step = Step::Activate(Activation::GeluErf);
const MM0: Step = Step::Product(Mm0, Some(Mm0Bias));
const MM1: Step = Step::Product(Mm1, Some(Mm1Bias));
const MM2: Step = Step::Product(Mm2, Some(Mm2Bias));

const QWEN2_VL: Family = Family {
    languages: &["qwen2vl"],
    rotation: Rotation::Halves,
    merge: (SPATIAL, 2),
    projector: &[POST_LAYER_NORM, JOIN, MM0, GELU, MM2],
    optional: &[PatchEmbdBias, PatchEmbdOfSecondFrame, PostNormBias],
    ..FAMILY
};

pub const FAMILIES: &[Family] = &[
    Family {
        name: "gemma3",
        languages: &["gemma3"],
        places: Places::Learned,
        merge: (FACTOR, 4),
        projector: &[POST_LAYER_NORM, Step::Mean, Step::Norm(RMS, MmSoftNorm, None), Step::Transposed(MmInputProjection)],
        ..FAMILY
    },
    Family {
        name: "gemma4v",
        languages: &["gemma4"],
        towers: both(Arch {
            attn_scale: Some(1.0),
            weightless_v_norm: true,
            rope: crate::arch::RopePairing::Quarters,
            required: &[AttnNorm, FfnNorm, AttnV, AttnQNorm, AttnKNorm, PostAttnNorm, PostFfnNorm],
            ..GATED
        }),
        places: Places::Axes,
        rotation: Rotation::Quarters,
        merge: (FACTOR, 3),
        centred: true,
        projector: &[
            Step::Mean,
            Step::RootOfLength,
            Step::Standardise { bias: StdBias, scale: StdScale },
            Step::Weightless,
            Step::Product(MmInputProjection, None),
        ],
        optional: &[PatchEmbdBias, StdBias, StdScale],
        ..FAMILY
    },
    // Gemma 4 Unified
    Family {
        name: "gemma4uv",
        languages: &["gemma4"],
        places: Places::Axes,
        merge: (FACTOR, 3),
        is_encoder_free: true,
        projector: &[Step::Weightless, Step::Product(MmInputProjection, None)],
        optional: &[],
        ..FAMILY
    },
    Family { name: "qwen2vl_merger", ..QWEN2_VL },
    Family { name: "qwen2.5vl_merger", towers: both(GATED), windows: true, projector: &[POST_RMS_NORM, JOIN, MM0, GELU, MM2], ..QWEN2_VL },
    Family {
        name: "qwen3vl_merger",
        languages: &["qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"],
        places: Places::Resized(Filter::Corners),
        ..QWEN2_VL
    },
    Family {
        name: "glm4v",
        languages: &["glm4", "glm4moe"],
        towers: both(GATED),
        places: Places::Resized(Filter::Bicubic),
        projector: &[
            POST_RMS_NORM,
            Step::Join { interleaved: true },
            Step::Product(MmMerger, Some(MmMergerBias)),
            Step::Product(MmFc, None),
            Step::Norm(LAYER, MmPostNorm, Some(MmPostNormBias)),
            GELU,
            Step::Gated { activation: Activation::Silu, gate: MmGate, up: MmUp },
            Step::Product(MmDown, None),
        ],
        optional: &[PatchEmbdBias, PatchEmbdOfSecondFrame, PatchNorm, MmMergerBias],
        ..QWEN2_VL
    },
    Family {
        name: "idefics3",
        places: Places::Learned,
        merge: (FACTOR, 2),
        projector: &[POST_LAYER_NORM, JOIN, Step::Product(MmFc, None)],
        ..FAMILY
    },
    Family {
        name: "pixtral",
        towers: both(Arch { rope: crate::arch::RopePairing::Adjacent, ..GATED }),
        rotation: Rotation::RowsThenColumns,
        merge: (SPATIAL, 1),
        projector: &[
            Step::Norm(RMS, MmInputNorm, None),
            Step::Join { interleaved: true },
            Step::Product(MmMerger, None),
            MM1,
            GELU,
            MM2,
            Step::Breaks(BreakEmbd),
        ],
        optional: &[PatchEmbdBias, MmInputNorm, MmMerger, Mm1Bias, Mm2Bias, BreakEmbd],
        ..FAMILY
    },
    // LLaVA 1.5 and 1.6
    Family {
        name: "mlp",
        class_row: ClassRow::First,
        places: Places::Learned,
        projector: &[JOIN, MM0, GELU, MM2],
        optional: &[PatchEmbdBias, PreNorm, PreNormBias, NewlineEmbd],
        ..FAMILY
    },
    Family {
        name: "internvl",
        towers: both(Arch { optional: &[AttnScale, FfnScale, AttnQNorm, AttnKNorm], ..PLAIN }),
        larger: Some((
            3200,
            both(Arch {
                norm: NormKind::Rms,
                required: &[AttnNorm, FfnNorm],
                optional: &[AttnScale, FfnScale, AttnQNorm, AttnKNorm],
                ..PLAIN
            }),
        )),
        gelu: Activation::GeluErf,
        class_row: ClassRow::First,
        places: Places::Learned,
        merge: (FACTOR, 2),
        projector: &[
            JOIN,
            Step::Norm(LAYER, MmMlp0, Some(MmMlp0Bias)),
            Step::Product(MmMlp1, Some(MmMlp1Bias)),
            GELU,
            Step::Product(MmMlp3, Some(MmMlp3Bias)),
        ],
        ..FAMILY
    },
    // MiniCPM-V
    Family { name: "resampler", places: Places::Buckets(70), projector: &[POST_LAYER_NORM, Step::Resample], ..FAMILY },
    Family {
        name: "llama4",
        languages: &["llama4"],
        towers: both(Arch { rope: crate::arch::RopePairing::Adjacent, ..PLAIN }),
        gelu: Activation::GeluErf,
        class_row: ClassRow::Last,
        places: Places::Learned,
        rotation: Rotation::ColumnsThenRows,
        merge: (FACTOR, 2),
        projector: &[
            POST_LAYER_NORM,
            JOIN,
            Step::Product(MmMlp1, None),
            GELU,
            Step::Product(MmMlp2, None),
            GELU,
            Step::Product(MmFc, None),
        ],
        optional: &[PatchEmbdBias, PreNorm, PreNormBias],
        ..FAMILY
    },
    Family {
        name: "lfm2",
        languages: &["lfm2", "lfm2moe"],
        places: Places::Resized(Filter::Bilinear),
        merge: (FACTOR, 2),
        projector: &[POST_LAYER_NORM, JOIN, Step::Norm(LAYER, MmInputNorm, Some(MmInputNormBias)), MM1, GELU, MM2],
        optional: &[PatchEmbdBias, MmInputNorm, MmInputNormBias],
        ..FAMILY
    },
    Family {
        name: "kimivl",
        languages: &["deepseek2"],
        towers: both(Arch { rope: crate::arch::RopePairing::Adjacent, ..PLAIN }),
        places: Places::Resized(Filter::Bicubic),
        rotation: Rotation::Turns,
        merge: (FACTOR, 2),
        projector: &[POST_LAYER_NORM, Step::Norm(LAYER, MmInputNorm, Some(MmInputNormBias)), JOIN, MM1, GELU, MM2],
        ..FAMILY
    },
];
