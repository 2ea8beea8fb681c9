//! Flags that choose the device of a measurement.

use std::str::FromStr;

use anyhow::bail;

use crate::config::{self, Backend};
use crate::engine;
use crate::registry;

#[derive(clap::Args, Debug)]
pub struct DeviceArgs {
    /// The backend to compute with: auto, cpu or cuda
    #[arg(long)]
    backend: Option<Backend>,
    /// Index of the GPU; or cpu, cuda or cuda:INDEX
    #[arg(long, value_name = "DEVICE", default_value = "0")]
    device: DeviceArg,
    /// How the KV cache stores keys and values: auto, f32, f16 or q8
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    cache_type: config::CacheType,
}

impl DeviceArgs {
    /// The backend that the flags choose, or `otherwise`.
    ///
    /// # Errors
    /// The flags name different backends.
    pub fn backend(&self, otherwise: Backend) -> anyhow::Result<Backend> {
        match (self.backend, self.device.backend) {
            (Some(asked), Some(of_device)) if asked != of_device => {
                bail!("--backend is {}, but --device names the backend {}: leave one of them out", asked.name(), of_device.name())
            }
            (asked, of_device) => Ok(asked.or(of_device).unwrap_or(otherwise)),
        }
    }

    /// The type of the KV cache. None: the device's own.
    pub fn cache_type(&self) -> Option<engine::CacheType> {
        registry::cache_type(self.cache_type)
    }

    /// The device's index among those of its backend.
    pub fn index(&self) -> u32 {
        self.device.index
    }
}

/// The index of a GPU, or a backend with an index: `1`, `cuda`, `cuda:1`, `cpu`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DeviceArg {
    /// None: the flag `--backend` decides.
    backend: Option<Backend>,
    index: u32,
}

impl FromStr for DeviceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("`{text}` is no device: expected the index of a GPU, or cpu, cuda or cuda:INDEX");
        if let Ok(index) = text.parse() {
            return Ok(Self { backend: None, index });
        }
        let (name, index) = text.split_once(':').unwrap_or((text, "0"));
        let backend = name.parse::<Backend>().map_err(|_| fault())?;
        Ok(Self { backend: Some(backend), index: index.parse().map_err(|_| fault())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_an_index_or_a_backend() {
        let of = |text: &str| text.parse::<DeviceArg>();
        assert_eq!(of("2"), Ok(DeviceArg { backend: None, index: 2 }));
        assert_eq!(of("cpu"), Ok(DeviceArg { backend: Some(Backend::Cpu), index: 0 }));
        assert_eq!(of("cuda:3"), Ok(DeviceArg { backend: Some(Backend::Cuda), index: 3 }));
        for wrong in ["", "abacus", "cuda:", "cuda:x", "-1", "1x", "cpu:99999999999"] {
            assert!(of(wrong).unwrap_err().contains("is no device"), "{wrong}");
        }
    }

    #[test]
    fn both_flags_name_the_same_backend() {
        let of = |backend, device: &str| {
            DeviceArgs { backend, device: device.parse().unwrap(), cache_type: config::CacheType::Auto }.backend(Backend::Auto).ok()
        };
        assert_eq!(of(None, "1"), Some(Backend::Auto));
        assert_eq!(of(None, "cuda:1"), Some(Backend::Cuda));
        assert_eq!(of(Some(Backend::Cpu), "0"), Some(Backend::Cpu));
        assert_eq!(of(Some(Backend::Cpu), "cuda"), None);
    }
}
