//! Estimates what a model of the catalogue needs before its file is there.

use crate::config::ModelEntry;
use crate::registry::estimated_memory;

/// The context that memory is computed for, unless the model's own is shorter [tokens].
pub const CONTEXT: usize = 4096;

/// The memory that an entry's model is assumed to need with a context of [`CONTEXT`] tokens [bytes].
pub fn needed(entry: &ModelEntry) -> Option<u64> {
    entry.size_or_about().map(estimated_memory)
}

/// Compares `docs/choose.md` with the figures of `penstock doctor`. `PENSTOCK_BLESS=1` rewrites its table.
#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, ConfigSources, Overrides};

    const GIB: f64 = (1u64 << 30) as f64;
    /// Free memory [GiB], and the GPUs and computers that have about as much.
    const MACHINES: [(f64, &str, &str); 9] = [
        (1.5, "2 GB", "4 GB"),
        (3.5, "4 GB", "8 GB"),
        (5.5, "6 GB", "10 GB"),
        (7.5, "8 GB", "12 GB"),
        (11.5, "12 GB", "16 GB"),
        (15.5, "16 GB", "24 GB"),
        (23.5, "24 GB", "32 GB"),
        (47.0, "48 GB", "64 GB"),
        (79.0, "80 GB", "96 GB"),
    ];

    /// The models of the catalogue by the memory that each needs, with the smallest machines that hold it.
    fn table() -> String {
        let env = vec![("HOME".to_owned(), "/home/u".to_owned())];
        let config = Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap();
        let models = config.models.iter().filter(|entry| entry.of.is_none() && entry.built_in);
        let mut sizes: Vec<(u64, &ModelEntry)> = models.map(|entry| (needed(entry).unwrap(), entry)).collect();
        sizes.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.id.cmp(&b.1.id)));
        let mut text = "| model | memory [GiB] | a GPU of | or a computer of | longest context [tokens] | kind |\n".to_owned();
        text += "|---|---|---|---|---|---|\n";
        for (bytes, entry) in sizes {
            let gibibytes = bytes as f64 / GIB;
            let (_, gpu, computer) = MACHINES.iter().find(|(free, ..)| gibibytes <= *free).expect("a machine holds it");
            let context = entry.max_context.map_or("?".to_owned(), |tokens| tokens.to_string());
            let kind = if entry.base { "base" } else { "" };
            text += &format!("| `{}` | {gibibytes:.1} | {gpu} | {computer} | {context} | {kind} |\n", entry.id).replace("|  |", "| |");
        }
        text
    }

    #[test]
    fn the_page_has_the_figures_of_the_doctor() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/choose.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let begin = page.find("| model | memory").expect("the page has the table");
        let end = begin + page[begin..].find("\n\n").expect("a text follows the table") + 1;
        let table = table();
        if std::env::var_os("PENSTOCK_BLESS").is_some() {
            std::fs::write(&path, [&page[..begin], &table, &page[end..]].concat()).unwrap();
            return;
        }
        assert_eq!(&page[begin..end], table, "docs/choose.md differs from `penstock doctor`: run this test with PENSTOCK_BLESS=1");
    }
}
