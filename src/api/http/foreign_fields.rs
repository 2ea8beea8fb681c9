//! Fields of other servers that would change an answer: llama.cpp, vLLM, SGLang, TGI, Ollama, KoboldCpp, text-generation-webui and the APIs
//! of Mistral, Cohere, Anthropic and OpenAI. Where the server has no such field, it refuses the request and does not leave them out.

use super::neutral::Neutral::{self, *};

/// A field of another server, the values with which it asks for nothing, and our names for the same thing.
pub type ForeignField = (&'static str, Neutral, &'static [&'static str]);

/// The field that every sampling request has. It stands in for a sampling field without a counterpart.
pub const SAMPLES: &str = "temperature";

const LENGTH: &[&str] = &["max_tokens", "max_output_tokens", "num_predict"];
const REPEAT: &[&str] = &["repetition_penalty", "repeat_penalty"];
const STOP: &[&str] = &["stop", "stop_sequences"];
const ZERO: Neutral = Numbers(&[0.0]);
const ONE: Neutral = Numbers(&[1.0]);

/// Sampling fields. They are refused at every endpoint that has `temperature`.
#[rustfmt::skip]
pub const SAMPLING: &[ForeignField] = &[
    ("adaptive_decay", Anything, &[]),
    ("adaptive_target", Numbers(&[-1.0]), &[]),
    ("allowed_token_ids", Empty, &[]),
    ("bad_words", Empty, &[]),
    ("bad_words_ids", Empty, &["bad_words"]),
    ("ban_eos_token", False, &["ignore_eos"]),
    ("banned_strings", Empty, &["bad_words"]),
    ("banned_tokens", Empty, &["bad_words"]),
    ("candidate_count", ONE, &["n"]),
    ("custom_logit_processor", Texts(&[""]), &["logit_bias"]),
    ("custom_token_bans", Texts(&[""]), &["bad_words"]),
    ("diversity_penalty", ZERO, REPEAT),
    ("do_sample", True, &[]),
    ("dry_allowed_length", Anything, &[]),
    ("dry_base", Anything, &[]),
    ("dry_multiplier", ZERO, REPEAT),
    ("dry_penalty_last_n", Anything, &[]),
    ("dry_sequence_breakers", Anything, &[]),
    ("dynamic_temperature", False, &[]),
    ("dynatemp_exponent", Anything, &[]),
    ("dynatemp_high", Anything, &[]),
    ("dynatemp_low", Anything, &[]),
    ("dynatemp_range", ZERO, &[]),
    ("early_stopping", False, &[]),
    ("encoder_repetition_penalty", ONE, REPEAT),
    ("epsilon_cutoff", ZERO, &["min_p"]),
    ("eta_cutoff", ZERO, &["min_p"]),
    ("frequency", ZERO, &["frequency_penalty"]),
    ("frequency_penalty", ZERO, REPEAT),
    ("guidance_scale", ONE, &[]),
    ("ignore_eos", False, &[]),
    ("k", ZERO, &["top_k"]),
    ("length_penalty", ONE, &[]),
    ("logit_bias", Nothing, &[]),
    ("logits_processors", Empty, &["logit_bias"]),
    ("lora", Empty, &["model"]),
    ("max_completion_tokens", Nothing, LENGTH),
    ("max_gen_len", Nothing, LENGTH),
    ("max_length", Nothing, LENGTH),
    ("max_new_tokens", Nothing, LENGTH),
    ("max_output_tokens", Nothing, LENGTH),
    ("max_tokens", Numbers(&[-1.0]), LENGTH),
    ("max_tokens_to_sample", Nothing, LENGTH),
    ("min_keep", ZERO, &[]),
    ("min_length", ZERO, &["min_tokens"]),
    ("min_new_tokens", ZERO, &["min_tokens"]),
    ("min_p", ZERO, &["top_p"]),
    ("min_tokens", ZERO, &[]),
    ("mirostat", ZERO, &[]),
    ("mirostat_eta", Anything, &[]),
    ("mirostat_mode", ZERO, &[]),
    ("mirostat_tau", Anything, &[]),
    ("n", ONE, &[]),
    ("n_predict", Numbers(&[-1.0, -2.0]), LENGTH),
    ("negative_prompt", Texts(&[""]), &[]),
    ("no_repeat_ngram_size", ZERO, REPEAT),
    ("nsigma", ZERO, &["min_p"]),
    ("num_beams", ONE, &[]),
    ("num_predict", Numbers(&[-1.0, -2.0]), LENGTH),
    ("num_return_sequences", ONE, &["n"]),
    ("p", ONE, &["top_p"]),
    ("penalize_newline", True, REPEAT),
    ("penalize_nl", Anything, &[]),
    ("penalty_alpha", ZERO, REPEAT),
    ("post_sampling_probs", False, &["n_probs", "logprobs"]),
    ("presence", ZERO, &["presence_penalty"]),
    ("presence_penalty", ZERO, REPEAT),
    ("random_seed", Nothing, &["seed"]),
    ("rep_pen", ONE, REPEAT),
    ("rep_pen_range", ZERO, REPEAT),
    ("rep_pen_slope", Anything, &[]),
    ("repeat_last_n", Numbers(&[-1.0]), REPEAT),
    ("repeat_penalty", Nothing, REPEAT),
    ("repetition_penalty", ONE, REPEAT),
    ("repetition_penalty_range", ZERO, REPEAT),
    ("sampler_order", Empty, &[]),
    ("sampler_priority", Empty, &[]),
    ("samplers", Texts(&[""]), &[]),
    ("seed", Numbers(&[-1.0]), &[]),
    ("smoothing_curve", Anything, &[]),
    ("smoothing_factor", ZERO, &[]),
    ("stop", Texts(&[""]), STOP),
    ("stop_regex", Texts(&[""]), STOP),
    ("stop_sequences", Texts(&[""]), STOP),
    ("stop_token_ids", Empty, STOP),
    ("stop_words", Texts(&[""]), STOP),
    ("temperature_last", False, &[]),
    ("tfs", ONE, &["top_p"]),
    ("tfs_z", Numbers(&[1.0, 0.0]), &["top_p"]),
    ("top_a", ZERO, &["min_p"]),
    ("top_n_sigma", Numbers(&[-1.0, 0.0]), &["min_p"]),
    ("typ_p", Numbers(&[1.0, 0.0]), &["top_p"]),
    ("typical", Numbers(&[1.0, 0.0]), &["top_p"]),
    ("typical_p", Numbers(&[1.0, 0.0]), &["top_p"]),
    ("use_beam_search", False, &[]),
    ("watermark", False, &[]),
    ("xtc_probability", ZERO, &[]),
    ("xtc_threshold", Anything, &[]),
];

/// Other fields. They are refused at every endpoint that has the same function under one of our names.
const OTHERS: &[ForeignField] = &[
    ("decoder_input_details", False, &["prompt_logprobs"]),
    ("ebnf", Texts(&[""]), &["grammar"]),
    ("format", Texts(&[""]), &["response_format"]),
    ("gbnf", Texts(&[""]), &["grammar"]),
    ("n_probs", ZERO, &["logprobs"]),
    ("passages", Nothing, &["documents"]),
    ("return_full_text", False, &["echo"]),
    ("return_logprob", False, &["logprobs"]),
    ("schema", Nothing, &["json_schema"]),
    ("texts", Nothing, &["documents", "input"]),
    ("top_n_tokens", ZERO, &["top_logprobs"]),
];

/// The meaning of another server's field at an endpoint.
pub enum Meaning {
    /// The server has the same function under another name.
    Same(&'static str),
    /// A sampling field that the server does not have.
    Sampling,
}

/// Returns what the field `name` means at an endpoint whose known fields `knows` finds. `None` if it changes no answer there.
pub fn meaning(name: &str, knows: impl Fn(&str) -> bool) -> Option<(Neutral, Meaning)> {
    let find = |table: &'static [ForeignField]| table.iter().find(|(peer, ..)| *peer == name);
    let same = |(_, off, ours): &ForeignField| ours.iter().find(|ours| knows(ours)).map(|ours| (*off, Meaning::Same(ours)));
    let sampling = find(SAMPLING).filter(|_| knows(SAMPLES));
    let found = sampling.and_then(same).or_else(|| sampling.map(|(_, off, _)| (*off, Meaning::Sampling)));
    found.or_else(|| find(OTHERS).and_then(same))
}
