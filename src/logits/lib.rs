//! Chooses tokens from logits: filters, penalties, masks, draws and log-probabilities.
//!
//! ```
//! use std::sync::Arc;
//! use penstock_logits::{SamplingParams, SamplingState};
//!
//! let params = SamplingParams { temperature: 0.7, top_p: 0.9, seed: 1, ..SamplingParams::default() };
//! let mut state = SamplingState::new(Arc::new(params), &[], &[]);
//! let id = state.sample(&mut [0.1, 2.5, -1.0], None);
//! assert!(id.is_some_and(|id| id < 3));
//! ```
//!
//! The steps run in this order, which follows vLLM for the steps that change the distribution: repetition penalty; presence and frequency
//! penalties; logit bias; suppression of ids before `min_tokens`; a grammar's mask; temperature; min-p; top-k; top-p; the draw.
//!
//! # Invariants
//! - The same logits and parameters give the same token on every machine. Every sum is taken in one fixed order.
//! - A draw depends only on the logits, the seed and the number of tokens generated before it ([`rng`]). After a preemption, a sequence
//!   continues with the tokens that it would have drawn otherwise.
//! - A row gives no token if an allowed logit is NaN or +inf.

mod constraint;
mod divergence;
pub mod filter;
mod logprobs;
mod mask;
mod params;
pub mod rng;
mod state;
#[cfg(test)]
mod tests;

pub use constraint::{Allowed, Constraint, Grammar};
pub use divergence::{Distribution, Divergence};
pub use logprobs::{Logprobs, MAX_LOGPROBS};
pub use mask::mask_words;
pub use params::{SamplingChoice, SamplingParams};
pub use state::SamplingState;
