//! Penstock: an OpenAI-compatible gateway and an inference engine in one process.
//!
//! Rooms import only downwards:
//!
//! - `cli → api → registry → serving → scheduler → engine → cpu | cuda`
//! - `registry → create → catalogue`
//! - `create → quantize, template`
//! - `api → keys`
//! - `serving → chat → grammar → tokenizer`
//! - `serving → template`
//! - `engine → model → gguf`
//! - `convert → quantize → model`
//! - `convert → tokenizer`
//!
//! `gguf`, `tokenizer`, `template`, `logits`, `config`, `keys`, `metrics` and `outside` are leaves. Below `serving` there are only token
//! ids, above it only text.

pub mod cli;
pub mod telemetry;

pub use {
    adapters, api, catalogue, chat, config, convert, create, engine, gguf, keys, logits, model, quantize, registry, serving, template,
    tokenizer,
};
