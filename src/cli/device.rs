//! The device of a measurement, as the command line names it.

use std::str::FromStr;

use crate::config::Backend;

/// The index of a GPU, or a backend with an index: `1`, `cuda`, `cuda:1`, `cpu`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceArg {
    /// None: the flag `--backend` says it.
    pub backend: Option<Backend>,
    pub index: u32,
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
        assert_eq!(of("cuda"), Ok(DeviceArg { backend: Some(Backend::Cuda), index: 0 }));
        assert_eq!(of("cuda:3"), Ok(DeviceArg { backend: Some(Backend::Cuda), index: 3 }));
        for wrong in ["", "abacus", "cuda:", "cuda:x", "-1"] {
            assert!(of(wrong).unwrap_err().contains("is no device"), "{wrong}");
        }
    }
}
