//! [`Run`]: what products need.

use super::simd::Kernels;
use super::simd::pool::ThreadPool;
use super::simd::rows::Scratch;
use model::Weights;

/// The resources that products need.
pub struct Run<'a> {
    pub kernels: &'static Kernels,
    pub pool: &'a mut ThreadPool,
    pub scratch: &'a mut Scratch,
    pub weights: &'a Weights,
}
