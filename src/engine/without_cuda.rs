//! Stands in for the CUDA engine in a build without it.

use std::convert::Infallible;

use super::{DeviceMemory, Engine, EngineError, EngineOptions, Share};
use crate::model::Weights;

/// There is none.
pub struct Device(Infallible);

impl Device {
    pub fn open(_index: u32) -> Result<Self, EngineError> {
        Err(EngineError::NoDevice("this build is without CUDA".into()))
    }

    pub fn memory(&self) -> Result<DeviceMemory, EngineError> {
        match self.0 {}
    }

    pub fn named_memory(&self) -> Result<(DeviceMemory, String), EngineError> {
        match self.0 {}
    }

    pub fn share(&self, _weights: &Weights, _options: &EngineOptions) -> Result<Share, EngineError> {
        match self.0 {}
    }

    pub fn engine(self, _weights: Weights, _options: &EngineOptions) -> Result<Box<dyn Engine>, EngineError> {
        match self.0 {}
    }
}

/// Ends the process.
pub fn end_process(code: i32) -> ! {
    std::process::exit(code)
}
