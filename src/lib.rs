//! Penstock: an OpenAI-compatible gateway that feeds an engine thread of its own.
//!
//! Arrows point down only: `cli → api → registry → serving → scheduler → engine → cpu | cuda`; `registry → catalogue`;
//! `api → keys`; `serving → chat → grammar → tokenizer`; `serving → template`; `engine → model → gguf`;
//! `convert → quantize → model`; `convert → tokenizer`. `gguf`, `tokenizer`, `template`, `logits`, `config`, `keys`, `metrics` and
//! `outside` are leaves. Token ids below `serving`, text above it.

pub mod cli;
pub mod telemetry;

pub use {api, catalogue, chat, config, convert, engine, gguf, keys, logits, model, quantize, registry, serving, template, tokenizer};
