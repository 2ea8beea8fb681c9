//! Styles of real templates.

use std::path::Path;

use super::style::Style;
use crate::gguf::GgufFile;
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

fn shared() -> Option<std::path::PathBuf> {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data/templates"));
    if !dir.exists() {
        println!("skipped: there are no templates");
    }
    dir.exists().then(|| dir.to_owned())
}

fn style_of(dir: &Path, name: &str) -> Option<Style> {
    let models = std::env::var_os("PENSTOCK_TEST_MODELS")?;
    let file = GgufFile::open(&Path::new(&models).join("smollm2-135m-instruct-q4_1.gguf")).ok()?;
    let source = std::fs::read_to_string(dir.join(format!("{name}.jinja"))).unwrap();
    Some(Style::of(&ChatTemplate::new(&source, "<s>", "</s>").unwrap(), &Tokenizer::from_gguf(&file).unwrap()))
}

#[test]
fn real_templates_are_understood() {
    let Some(dir) = shared() else { return };
    for entry in std::fs::read_dir(&dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(name) = name.strip_suffix(".jinja") else { continue };
        let Some(style) = style_of(&dir, name) else { return };
        println!(
            "{name}: {} {:?} {:?} {:?}",
            style.syntax.name,
            style.telling,
            style.history,
            style.thinking.map(|thinking| thinking.open)
        );
    }
}
