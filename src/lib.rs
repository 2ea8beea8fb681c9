//! Penstock: an OpenAI-compatible gateway that feeds an engine thread of its own.
//!
//! Arrows point down only: `cli → api → serving → scheduler → engine → cpu | cuda`; `serving → answer → grammar → tokenizer`;
//! `serving → template`; `engine → model → gguf`; `registry` hands open models to `serving`. `gguf`, `tokenizer`, `template`, `logits`,
//! `config` and `metrics` are leaves. Token ids below `serving`, text above it.

pub mod answer;
pub mod api;
pub mod cli;
pub mod config;
pub mod engine;
pub mod gguf;
pub mod grammar;
pub mod logits;
pub mod metrics;
pub mod model;
pub mod registry;
pub mod scheduler;
pub mod serving;
pub mod telemetry;
pub mod template;
pub mod tokenizer;
