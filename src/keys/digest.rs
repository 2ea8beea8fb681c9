//! Secrets and their hashes.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

/// Prefix of every secret, by which scanners recognise leaked ones.
const PREFIX: &str = "sk-penstock-";
/// Number of random bytes in a secret.
const SECRET_BYTES: usize = 32;

/// Generates a secret of 256 random bits.
///
/// # Errors
/// The system provides no random bytes.
pub fn new_secret() -> std::io::Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(format!("the system gives no random bytes: {error}")))?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// The SHA-256 of a secret.
#[derive(Clone, Copy)]
pub struct Digest([u8; 32]);

impl Digest {
    pub fn of(secret: &[u8]) -> Self {
        Self(Sha256::digest(secret).into())
    }

    /// The first bytes, by which a key is looked up. They reveal nothing about the secret, so the time of a look-up may depend on them.
    pub fn index(&self) -> [u8; 8] {
        self.0[..8].try_into().expect("eight bytes of 32")
    }
}

/// Compares in constant time.
impl PartialEq for Digest {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Digest {}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let bytes = text.as_bytes().chunks(2).map(|pair| match *pair {
            [high, low] => Some((digit(high)? * 16 + digit(low)?) as u8),
            _ => None,
        });
        let bytes: Option<Vec<u8>> = if text.len() == 64 { bytes.collect() } else { None };
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or_else(|| "it is not a SHA-256 of 64 hex digits".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_sha256_in_hex() {
        // `printf abc | sha256sum`
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").to_string(), abc);
        assert_eq!(abc.to_uppercase().parse(), Ok(Digest::of(b"abc")));
        assert_ne!(Digest::of(b"abc"), Digest::of(b"abd"));
        for bad in ["", "ba", &abc[1..], &format!("{abc}0"), &abc.replace('b', "g"), &"é".repeat(32)] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }

    #[test]
    fn secrets_differ_and_fit_a_header() {
        let (one, two) = (new_secret().unwrap(), new_secret().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.len(), PREFIX.len() + 43, "256 bits in base64");
        assert!(one.starts_with(PREFIX) && one.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
    }
}
