//! The section `[cache]`: where the prefix cache goes on below the engine's memory.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The smallest folder that is worth its files [bytes].
const LEAST: u64 = 64 << 20;
const MOST: u64 = 1 << 50;

/// The section `[cache]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// The most disk space for the KV blocks of prompts. Off: they are lost with the process, and when the engine's memory is full.
    pub disk: DiskSpace,
    /// The folder of these files. "" in a file means a folder in the user's data directory, and is replaced by its path.
    pub folder: PathBuf,
}

/// An amount of disk space, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DiskSpace {
    /// None: off.
    pub bytes: Option<u64>,
}

impl FromStr for DiskSpace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::default());
        }
        let wrong = || format!("`{}` is no size: write a number with a unit, such as \"20GiB\", or \"off\"", text.escape_debug());
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim_start() {
            "MiB" => 20,
            "GiB" => 30,
            "TiB" => 40,
            _ => return Err(wrong()),
        };
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)).ok_or_else(wrong)?;
        match (LEAST..=MOST).contains(&bytes) {
            true => Ok(Self { bytes: Some(bytes) }),
            false => Err(format!("{text} is not between 64MiB and 1024TiB: choose another size, or \"off\"")),
        }
    }
}

impl TryFrom<String> for DiskSpace {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<DiskSpace> for String {
    fn from(space: DiskSpace) -> Self {
        space.bytes.map_or_else(|| "off".into(), |bytes| format!("{}MiB", bytes >> 20))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_unit() {
        let read = |text: &str| text.parse::<DiskSpace>().map(|space| space.bytes);
        assert_eq!(read("off"), Ok(None));
        assert_eq!((read("20GiB"), read("64MiB"), read("2 TiB")), (Ok(Some(20 << 30)), Ok(Some(64 << 20)), Ok(Some(2 << 40))));
        for wrong in
            ["", "20", "20GB", "GiB", "-1GiB", "1.5GiB", "20gib", "99999999999999999999GiB", "9999999999TiB", "63MiB", "0MiB", "on"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let space = DiskSpace { bytes: Some(20 << 30) };
        assert_eq!(String::from(space).parse(), Ok(space));
    }
}
