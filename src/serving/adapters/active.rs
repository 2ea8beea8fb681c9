//! Adapters as requests have them: asked for, in the host's memory, or refused.

use std::path::PathBuf;
use std::sync::Arc;

use adapters::AdapterKind;
use scheduler::{AdapterRequest, HostAdapter};

/// An adapter that a request is to have, and that is not read yet.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterChoice {
    /// The id under which it is served.
    pub name: Arc<str>,
    pub path: PathBuf,
    pub scale: f32,
}

/// An adapter of a model or of a request, in the host's memory.
#[derive(Clone, Debug)]
pub struct ActiveAdapter {
    pub name: Arc<str>,
    pub held: HeldAdapter,
    pub scale: f32,
}

/// Why an adapter cannot be used. The texts name files, but no folders of the server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdapterFault {
    #[error("{0}")]
    Unusable(String),
    #[error("the adapters in use fill the {0} MiB that they may have (engine.adapter_cache_bytes): try again later")]
    NoRoom(u64),
}

/// An adapter in use: it is not dropped from memory.
#[derive(Clone, Debug)]
pub struct HeldAdapter {
    pub host: Arc<HostAdapter>,
    pub kind: AdapterKind,
    /// The tokens of a prompt that switch it on. Empty: the whole prompt has it.
    pub invocation: Arc<[u32]>,
    /// Shared by all that use it.
    pub(super) users: Arc<()>,
}

/// A run of a prompt's tokens without rows between them: the index of the first one among the prompt's items, and the ids.
pub(crate) type TextRun<'a> = (usize, &'a [u32]);

impl ActiveAdapter {
    /// The adapter as a sequence with this prompt asks for it. None if it changes nothing there: its scale is 0, or the prompt does not
    /// have the tokens that switch it on.
    pub(crate) fn request(&self, prompt: &[TextRun]) -> Option<AdapterRequest> {
        if self.scale == 0.0 {
            return None;
        }
        let first = first_changed(prompt, &self.held.invocation)?;
        Some(AdapterRequest { adapter: self.held.host.clone(), scale: self.scale, first: u32::try_from(first).ok()? })
    }
}

/// The index of the first item that an activated LoRA changes: that of the last occurrence of `invocation`. 0 without an invocation.
fn first_changed(prompt: &[TextRun], invocation: &[u32]) -> Option<usize> {
    if invocation.is_empty() {
        return Some(0);
    }
    let last = |(start, ids): &TextRun| Some(start + ids.windows(invocation.len()).rposition(|window| window == invocation)?);
    prompt.iter().rev().find_map(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_activated_adapter_begins_at_the_last_invocation() {
        let first = |ids: &[u32], invocation: &[u32]| first_changed(&[(0, ids)], invocation);
        assert_eq!(first(&[1, 2, 3], &[]), Some(0));
        assert_eq!(first(&[1, 2, 1, 2, 3], &[1, 2]), Some(2));
        assert_eq!(first(&[1, 1, 2, 3], &[1, 2]), Some(1), "a repeated beginning is found");
        assert_eq!((first(&[1, 2], &[2, 1]), first(&[1], &[1, 2]), first(&[], &[1])), (None, None, None));
    }

    #[test]
    fn rows_count_and_part_an_invocation() {
        let prompt: [TextRun; 3] = [(0, &[1, 2, 7]), (6, &[9, 1, 2]), (12, &[2])];
        let first = |invocation: &[u32]| first_changed(&prompt, invocation);
        assert_eq!((first(&[1, 2]), first(&[7, 9]), first(&[2, 7])), (Some(7), None, Some(1)));
    }
}
