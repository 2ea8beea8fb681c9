//! Describes a model that is not on disk, from the catalogue, for `penstock show`.

use serde_json::{Value as Json, json};

use super::estimate::{CONTEXT, needed};
use super::output::{columns, human_bytes};
use crate::catalogue::{Presence, Store, describe};
use crate::config::{ModelEntry, Source};

/// Describes an entry whose model is to be fetched. None if it is on disk, or if nothing can fetch it.
pub fn unfetched(entry: &ModelEntry, store: &Store) -> Option<Json> {
    if matches!(entry.source, Source::File { .. }) || store.path(entry).is_some() {
        return None;
    }
    let partial = match store.presence(entry) {
        Presence::Partial(bytes) => Some(bytes),
        _ => None,
    };
    Some(json!({
        "id": entry.id,
        "aliases": entry.aliases,
        "on_disk": false,
        "partial_bytes": partial,
        "family": entry.family,
        "licence": entry.licence,
        "size": entry.size_or_about(),
        "size_is_approximate": entry.size.is_none(),
        "context_length": entry.max_context,
        "base": entry.base,
        "source": entry.source,
        "mmproj": entry.mmproj,
        "sha256": entry.sha256,
        "estimated_memory": needed(entry),
        "fetch": format!("penstock pull {}", entry.stored_as()),
    }))
}

/// The same for people.
pub fn text(entry: &ModelEntry, shown: &Json) -> String {
    let bytes = |key: &str| shown[key].as_u64().map(human_bytes);
    let about = |known: bool| if known { "" } else { "about " };
    let fetch = shown["fetch"].as_str().unwrap_or_default();
    let on_disk = match bytes("partial_bytes") {
        Some(part) => format!("a part ({part}): `{fetch}` continues"),
        None => format!("no: `{fetch}` fetches it"),
    };
    let memory = bytes("estimated_memory")
        .map(|needed| format!("about {needed} with a context of up to {CONTEXT} tokens (`penstock doctor` says what fits)"));
    let rows = [
        ("id", Some(entry.id.clone())),
        ("aliases", Some(entry.aliases.join(", ")).filter(|names| !names.is_empty())),
        ("on disk", Some(on_disk)),
        ("family", entry.family.clone()),
        ("licence", entry.licence.clone()),
        ("size", bytes("size").map(|size| format!("{}{size}", about(entry.size.is_some())))),
        ("context length", entry.max_context.map(|tokens| tokens.to_string())),
        ("base", Some(if entry.base { "yes" } else { "no" }.to_owned())),
        ("source", Some(describe(&entry.source))),
        ("memory", memory),
    ];
    columns(&rows.map(|(name, value)| [name.to_owned(), value.unwrap_or_else(|| "not known".to_owned())]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_not_on_disk_is_described_by_its_entry() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let source = Source::Https { url: "https://example.com/m.gguf".into() };
        let entry = ModelEntry { gigabytes: Some(4.0), max_context: Some(32_768), ..ModelEntry::new("m:4b", source) };
        let shown = unfetched(&entry, &store).unwrap();
        assert_eq!((&shown["size"], &shown["size_is_approximate"]), (&json!(4_000_000_000u64), &json!(true)));
        assert_eq!(shown["estimated_memory"], 5_268_435_456u64);
        let text = text(&entry, &shown);
        assert!(text.contains("on disk         no: `penstock pull m:4b` fetches it\n"), "{text}");
        assert!(text.contains("size            about 3.7 GiB\n") && text.contains("licence         not known\n"), "{text}");
        std::fs::create_dir(dir.path().join("m+4b")).unwrap();
        std::fs::write(dir.path().join("m+4b/model.gguf.partial"), [0; 2048]).unwrap();
        let shown = unfetched(&entry, &store).unwrap();
        assert_eq!(shown["partial_bytes"], 2048);
        assert!(self::text(&entry, &shown).contains("a part (2.0 KiB): `penstock pull m:4b` continues"));
        let own = ModelEntry::new("own", Source::File { path: dir.path().join("none.gguf") });
        assert_eq!(unfetched(&own, &store), None, "nothing can fetch it");
    }
}
