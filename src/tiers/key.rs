//! What a file's bytes depend on, and the name that follows from it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// The length of a hash [bytes].
pub const HASH: usize = 32;

/// The hash of an identity. That of a block before the first one stands for all that every block of a model depends on, see [`root`].
pub type Root = [u8; HASH];

/// The root of a model: the hash of its weights, and how its cache is computed and stored (the type of the cache, the kernels, the size of
/// a block …). The hash of this program is added: another build may sum in another order.
///
/// # Errors
/// The program's own file cannot be read.
pub fn root(weights: &[u8; HASH], form: &str) -> std::io::Result<Root> {
    let program = program()?;
    let parts: [&[u8]; 4] = [b"penstock prefix cache 1", &program, weights, form.as_bytes()];
    Ok(parts
        .iter()
        .fold(Sha256::new(), |hasher, part| hasher.chain_update((part.len() as u64).to_le_bytes()).chain_update(part))
        .finalize()
        .into())
}

/// The hash of the program that runs.
fn program() -> std::io::Result<[u8; HASH]> {
    let path = if cfg!(target_os = "linux") { PathBuf::from("/proc/self/exe") } else { std::env::current_exe()? };
    let mut file = outside::open_regular(&path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match std::io::Read::read(&mut file, &mut buffer)? {
            0 => return Ok(hasher.finalize().into()),
            len => hasher.update(&buffer[..len]),
        }
    }
}

/// The identity of a block's content, with its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub hash: [u8; HASH],
    /// The number of blocks before it.
    pub depth: u32,
    pub bytes: Arc<[u8]>,
}

impl Identity {
    /// `parent`: the hash of the block before it, or the root. `scope`: what the sequence adds, such as the tenant's salt and adapters.
    /// `tokens`: the ids of the block's tokens.
    pub fn new(parent: &[u8; HASH], depth: u32, scope: &[u8], tokens: &[u32]) -> Self {
        let mut bytes = Vec::with_capacity(HASH + 8 + scope.len() + 4 * tokens.len());
        bytes.extend_from_slice(parent);
        bytes.extend_from_slice(&(scope.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&depth.to_le_bytes());
        bytes.extend_from_slice(scope);
        tokens.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
        Self { hash: Sha256::digest(&bytes).into(), depth, bytes: bytes.into() }
    }
}

/// A part of what an engine keeps for a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The block of a cache group.
    Block(u8),
    /// The recurrent state behind the content.
    State,
}

impl Part {
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Block(group) => group.into(),
            Self::State => u32::MAX,
        }
    }
}

/// The name of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub content: [u8; HASH],
    pub part: Part,
}

impl Key {
    /// The file's path below its folder: `ab/abcd….0`.
    pub(crate) fn path(&self) -> PathBuf {
        let hex: String = self.content.iter().map(|byte| format!("{byte:02x}")).collect();
        let part = match self.part {
            Part::Block(group) => group.to_string(),
            Part::State => "state".into(),
        };
        Path::new(&hex[..2]).join(format!("{hex}.{part}"))
    }

    /// The key of a file with this name, if the name is one of a key.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let (hex, part) = name.split_once('.')?;
        if hex.len() != 2 * HASH || !hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) {
            return None;
        }
        let mut content = [0; HASH];
        for (byte, at) in content.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
        }
        let part = if part == "state" { Part::State } else { Part::Block(part.parse().ok()?) };
        Some(Self { content, part }).filter(|key| key.path().ends_with(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Root = [0; HASH];

    #[test]
    fn a_name_leads_back_to_its_key() {
        for part in [Part::Block(0), Part::Block(13), Part::State] {
            let key = Key { content: Identity::new(&ROOT, 0, b"", &[1]).hash, part };
            let path = key.path();
            assert_eq!(Key::of_name(path.file_name().unwrap().to_str().unwrap()), Some(key));
        }
        let hex = "ab".repeat(32);
        for wrong in ["", ".0", "x.0", "notes.txt", &format!("{hex}.00"), &format!("{hex}.300"), &hex, &format!("{}.0", hex.to_uppercase())]
        {
            assert_eq!(Key::of_name(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn all_that_bytes_depend_on_is_part_of_the_hash() {
        let hash = |parent: u8, depth, scope: &[u8], tokens: &[u32]| Identity::new(&[parent; 32], depth, scope, tokens).hash;
        let all = [
            hash(0, 0, b"", &[1, 2]),
            hash(1, 0, b"", &[1, 2]),
            hash(0, 1, b"", &[1, 2]),
            hash(0, 0, b"a", &[1, 2]),
            hash(0, 0, b"", &[1, 3]),
            hash(0, 0, &1u32.to_le_bytes(), &[2]),
        ];
        assert!((0..all.len()).all(|i| !all[i + 1..].contains(&all[i])));
        let root = |weights, form| root(&[weights; 32], form).unwrap();
        assert!(root(1, "a") == root(1, "a") && root(1, "a") != root(2, "a") && root(1, "a") != root(1, "b"));
    }
}
