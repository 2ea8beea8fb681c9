//! Deletes models from the store while the server runs.

use std::sync::PoisonError;

use super::error::RegistryError;
use super::load_admission::UnloadReason;
use super::load_slot::UnloadError;
use super::registry::Registry;
use catalogue::PullError;
use config::Source;

impl Registry {
    /// Unloads a model and deletes its files. Blocks.
    ///
    /// # Errors
    /// The model is unknown, in use, or must not be deleted: a user's own file, a variant, or a model that the server was started with.
    pub fn delete(&self, name: &str) -> Result<(), RegistryError> {
        let (base, index) = self.find(name)?;
        let variant = &base.variants[index];
        let id = variant.id.clone();
        let kept = |cause: String| RegistryError::NotDeleted { id: id.clone(), cause };
        if let Some(root) = &variant.of {
            return Err(kept(format!("it is a variant, whose files are those of `{root}`: delete that")));
        }
        if matches!(variant.source, Source::File { .. }) {
            return Err(kept("it is a local file that the server did not fetch: delete the file itself".into()));
        }
        let named = self.named.read().unwrap_or_else(PoisonError::into_inner).clone();
        // The other names have links of their own to the same files, so that the model need not be unloaded.
        let leaves_others = base.variants.len() > 1 && base.entry.id != id;
        let is_needed = match leaves_others {
            true => variant.pinned || named.iter().any(|name| base.variant(name) == Some(index)),
            false => base.is_pinned() || named.iter().any(|name| base.variant(name).is_some()),
        };
        if is_needed {
            return Err(kept("the server was started with it, or it is pinned: take it out of the configuration first".into()));
        }
        let unloaded = if leaves_others { Ok(()) } else { self.unload_base(&base, false, UnloadReason::Removed) };
        match unloaded {
            Ok(()) | Err(UnloadError::NotLoaded) => {}
            Err(UnloadError::Loading) => return Err(RegistryError::Loading(id)),
            Err(UnloadError::InUse(num_requests)) => return Err(kept(format!("{num_requests} requests use it: wait for them"))),
        }
        let removed = self.store.remove_entry(variant).map_err(|error| {
            tracing::error!("the model `{id}` could not be deleted: {}", error.to_string().escape_debug());
            // Only the operator may see errors of the disk.
            kept(if let PullError::Refused(_) = error { "it is being fetched".into() } else { "the server's log has the cause".into() })
        })?;
        self.follow_store();
        removed.map(drop).ok_or_else(|| self.not_found(name))
    }
}
