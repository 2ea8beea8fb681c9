//! Tensor roles and their names in GGUF files.

/// Declares the roles. Each variant has its GGUF name, with `{}` for the layer's number.
macro_rules! roles {
    ($($role:ident = $pattern:literal,)+) => {
        /// A role that a tensor has in the forward pass. The variants are named after GGUF's tensors.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum TensorRole {
            $($role,)+
        }

        impl TensorRole {
            /// Every role.
            pub const ALL: &[TensorRole] = &[$(TensorRole::$role,)+];

            const PATTERNS: &[&str] = &[$($pattern,)+];
        }
    };
}

roles! {
    TokenEmbd = "token_embd.weight",
    PositionEmbd = "position_embd.weight",
    OutputNorm = "output_norm.weight",
    OutputNormBias = "output_norm.bias",
    Output = "output.weight",
    RopeFreqs = "rope_freqs.weight",
    RopeFactorsLong = "rope_factors_long.weight",
    RopeFactorsShort = "rope_factors_short.weight",
    AttnNorm = "blk.{}.attn_norm.weight",
    AttnNormBias = "blk.{}.attn_norm.bias",
    AttnQ = "blk.{}.attn_q.weight",
    AttnK = "blk.{}.attn_k.weight",
    AttnV = "blk.{}.attn_v.weight",
    AttnQBias = "blk.{}.attn_q.bias",
    AttnKBias = "blk.{}.attn_k.bias",
    AttnVBias = "blk.{}.attn_v.bias",
    AttnQNorm = "blk.{}.attn_q_norm.weight",
    AttnKNorm = "blk.{}.attn_k_norm.weight",
    AttnOutput = "blk.{}.attn_output.weight",
    AttnOutputBias = "blk.{}.attn_output.bias",
    PostAttnNorm = "blk.{}.post_attention_norm.weight",
    FfnNorm = "blk.{}.ffn_norm.weight",
    FfnNormBias = "blk.{}.ffn_norm.bias",
    FfnGate = "blk.{}.ffn_gate.weight",
    FfnUp = "blk.{}.ffn_up.weight",
    FfnDown = "blk.{}.ffn_down.weight",
    FfnGateBias = "blk.{}.ffn_gate.bias",
    FfnUpBias = "blk.{}.ffn_up.bias",
    FfnDownBias = "blk.{}.ffn_down.bias",
    FfnRouter = "blk.{}.ffn_gate_inp.weight",
    FfnGateExps = "blk.{}.ffn_gate_exps.weight",
    FfnUpExps = "blk.{}.ffn_up_exps.weight",
    FfnDownExps = "blk.{}.ffn_down_exps.weight",
    SharedRouter = "blk.{}.ffn_gate_inp_shexp.weight",
    FfnGateShexp = "blk.{}.ffn_gate_shexp.weight",
    FfnUpShexp = "blk.{}.ffn_up_shexp.weight",
    FfnDownShexp = "blk.{}.ffn_down_shexp.weight",
    PostFfnNorm = "blk.{}.post_ffw_norm.weight",
    TokenNorm = "token_embd_norm.weight",
    TokenNormBias = "token_embd_norm.bias",
    TokenTypes = "token_types.weight",
    OutputBias = "output.bias",
    Classifier = "cls.weight",
    ClassifierBias = "cls.bias",
    ClassifierOutput = "cls.output.weight",
    ClassifierOutputBias = "cls.output.bias",
    PostAttnNormBias = "blk.{}.post_attention_norm.bias",
    PostFfnNormBias = "blk.{}.post_ffw_norm.bias",
    AttnQNormBias = "blk.{}.attn_q_norm.bias",
    AttnKNormBias = "blk.{}.attn_k_norm.bias",
    AttnSubNorm = "blk.{}.attn_sub_norm.weight",
    AttnQkv = "blk.{}.attn_qkv.weight",
    AttnGate = "blk.{}.attn_gate.weight",
    AttnSinks = "blk.{}.attn_sinks.weight",
    AttnQA = "blk.{}.attn_q_a.weight",
    AttnQANorm = "blk.{}.attn_q_a_norm.weight",
    AttnQB = "blk.{}.attn_q_b.weight",
    AttnKvA = "blk.{}.attn_kv_a_mqa.weight",
    AttnKvANorm = "blk.{}.attn_kv_a_norm.weight",
    AttnKvB = "blk.{}.attn_kv_b.weight",
    AttnKB = "blk.{}.attn_k_b.weight",
    AttnVB = "blk.{}.attn_v_b.weight",
    FfnSubNorm = "blk.{}.ffn_sub_norm.weight",
    FfnActScales = "blk.{}.ffn.act.scales",
    FfnRouterBias = "blk.{}.ffn_gate_inp.bias",
    FfnRouterScale = "blk.{}.ffn_gate_inp.scale",
    ExpertChoiceBias = "blk.{}.exp_probs_b.bias",
    FfnNormExps = "blk.{}.ffn_norm_exps.weight",
    PostFfnNorm1 = "blk.{}.post_ffw_norm_1.weight",
    PostFfnNorm2 = "blk.{}.post_ffw_norm_2.weight",
    FfnGateExpsBias = "blk.{}.ffn_gate_exps.bias",
    FfnUpExpsBias = "blk.{}.ffn_up_exps.bias",
    FfnDownExpsBias = "blk.{}.ffn_down_exps.bias",
    FfnDownExpsScale = "blk.{}.ffn_down_exps.scale",
    FfnGateChexps = "blk.{}.ffn_gate_chexps.weight",
    FfnUpChexps = "blk.{}.ffn_up_chexps.weight",
    FfnDownChexps = "blk.{}.ffn_down_chexps.weight",
    LayerOutputScale = "blk.{}.layer_output_scale.weight",
    PerLayerTokenEmbd = "per_layer_token_embd.weight",
    PerLayerModelProj = "per_layer_model_proj.weight",
    PerLayerProjNorm = "per_layer_proj_norm.weight",
    PerLayerGate = "blk.{}.inp_gate.weight",
    PerLayerProj = "blk.{}.proj.weight",
    PerLayerPostNorm = "blk.{}.post_norm.weight",
    AltupProj = "altup_proj.weight",
    AltupUnembdProj = "altup_unembd_proj.weight",
    AltupCorrectCoef = "blk.{}.altup_correct_coef.weight",
    AltupCorrectScale = "blk.{}.altup_correct_scale.weight",
    AltupPredictCoef = "blk.{}.altup_predict_coef.weight",
    AltupRouter = "blk.{}.altup_router.weight",
    AltupRouterNorm = "blk.{}.altup_router_norm.weight",
    LaurelL = "blk.{}.laurel_l.weight",
    LaurelR = "blk.{}.laurel_r.weight",
    LaurelPostNorm = "blk.{}.laurel_post_norm.weight",
    SsmIn = "blk.{}.ssm_in.weight",
    SsmX = "blk.{}.ssm_x.weight",
    SsmDt = "blk.{}.ssm_dt.weight",
    SsmDtBias = "blk.{}.ssm_dt.bias",
    SsmA = "blk.{}.ssm_a",
    SsmD = "blk.{}.ssm_d",
    SsmConv = "blk.{}.ssm_conv1d.weight",
    SsmConvBias = "blk.{}.ssm_conv1d.bias",
    SsmOut = "blk.{}.ssm_out.weight",
    SsmNorm = "blk.{}.ssm_norm.weight",
    SsmDtNorm = "blk.{}.ssm_dt_norm.weight",
    SsmBNorm = "blk.{}.ssm_b_norm.weight",
    SsmCNorm = "blk.{}.ssm_c_norm.weight",
    SsmAlpha = "blk.{}.ssm_alpha.weight",
    SsmBeta = "blk.{}.ssm_beta.weight",
    SsmBa = "blk.{}.ssm_ba.weight",
    SsmConvQ = "blk.{}.ssm_conv1d_q.weight",
    SsmConvK = "blk.{}.ssm_conv1d_k.weight",
    SsmConvV = "blk.{}.ssm_conv1d_v.weight",
    SsmFA = "blk.{}.ssm_f_a.weight",
    SsmFB = "blk.{}.ssm_f_b.weight",
    SsmGA = "blk.{}.ssm_g_a.weight",
    SsmGB = "blk.{}.ssm_g_b.weight",
    ShortConvIn = "blk.{}.shortconv.in_proj.weight",
    ShortConv = "blk.{}.shortconv.conv.weight",
    ShortConvOut = "blk.{}.shortconv.out_proj.weight",
    AttnScale = "blk.{}.ls1.weight",
    FfnScale = "blk.{}.ls2.weight",
    PatchEmbd = "v.patch_embd.weight",
    PatchEmbdOfSecondFrame = "v.patch_embd.weight.1",
    PatchEmbdBias = "v.patch_embd.bias",
    PatchNorm = "v.norm_embd.weight",
    PatchPositions = "v.position_embd.weight",
    ClassEmbd = "v.class_embd",
    PreNorm = "v.pre_ln.weight",
    PreNormBias = "v.pre_ln.bias",
    PostNorm = "v.post_ln.weight",
    PostNormBias = "v.post_ln.bias",
    BreakEmbd = "v.token_embd.img_break",
    NewlineEmbd = "v.image_newline",
    StdBias = "v.std_bias",
    StdScale = "v.std_scale",
    Mm0 = "mm.0.weight",
    Mm0Bias = "mm.0.bias",
    Mm1 = "mm.1.weight",
    Mm1Bias = "mm.1.bias",
    Mm2 = "mm.2.weight",
    Mm2Bias = "mm.2.bias",
    MmFc = "mm.model.fc.weight",
    MmMlp0 = "mm.model.mlp.0.weight",
    MmMlp0Bias = "mm.model.mlp.0.bias",
    MmMlp1 = "mm.model.mlp.1.weight",
    MmMlp1Bias = "mm.model.mlp.1.bias",
    MmMlp2 = "mm.model.mlp.2.weight",
    MmMlp3 = "mm.model.mlp.3.weight",
    MmMlp3Bias = "mm.model.mlp.3.bias",
    MmInputNorm = "mm.input_norm.weight",
    MmInputNormBias = "mm.input_norm.bias",
    MmSoftNorm = "mm.soft_emb_norm.weight",
    MmInputProjection = "mm.input_projection.weight",
    MmMerger = "mm.patch_merger.weight",
    MmMergerBias = "mm.patch_merger.bias",
    MmPostNorm = "mm.post_norm.weight",
    MmPostNormBias = "mm.post_norm.bias",
    MmGate = "mm.gate.weight",
    MmUp = "mm.up.weight",
    MmDown = "mm.down.weight",
    DeepNorm = "deepstack.{}.norm.weight",
    DeepNormBias = "deepstack.{}.norm.bias",
    DeepFc1 = "deepstack.{}.fc1.weight",
    DeepFc1Bias = "deepstack.{}.fc1.bias",
    DeepFc2 = "deepstack.{}.fc2.weight",
    DeepFc2Bias = "deepstack.{}.fc2.bias",
    Queries = "resampler.query",
    ResamplerKv = "resampler.kv.weight",
    ResamplerQ = "resampler.attn.q.weight",
    ResamplerQBias = "resampler.attn.q.bias",
    ResamplerK = "resampler.attn.k.weight",
    ResamplerKBias = "resampler.attn.k.bias",
    ResamplerV = "resampler.attn.v.weight",
    ResamplerVBias = "resampler.attn.v.bias",
    ResamplerOut = "resampler.attn.out.weight",
    ResamplerOutBias = "resampler.attn.out.bias",
    ResamplerQNorm = "resampler.ln_q.weight",
    ResamplerQNormBias = "resampler.ln_q.bias",
    ResamplerKvNorm = "resampler.ln_kv.weight",
    ResamplerKvNormBias = "resampler.ln_kv.bias",
    ResamplerPostNorm = "resampler.ln_post.weight",
    ResamplerPostNormBias = "resampler.ln_post.bias",
    ResamplerProj = "resampler.proj.weight",
}

impl TensorRole {
    /// The usual GGUF name, with `{}` for the layer's number.
    pub const fn pattern(self) -> &'static str {
        Self::PATTERNS[self as usize]
    }

    /// Whether there is one tensor per layer. Otherwise there is one per model.
    pub fn per_layer(self) -> bool {
        self.pattern().contains("{}")
    }

    /// The tensor's usual name in a file, for example `blk.7.attn_q.weight`.
    pub fn name(self, layer: usize) -> String {
        self.pattern().replace("{}", &layer.to_string())
    }

    /// Whether a row uses only some of the tensor, because it is routed to a few experts.
    pub fn is_routed(self) -> bool {
        use TensorRole::*;
        matches!(self, FfnGateExps | FfnUpExps | FfnDownExps | FfnGateExpsBias | FfnUpExpsBias | FfnDownExpsBias)
    }
}
