//! Reads Modelfiles and translates templates of Go's.

use std::hint::black_box;
use std::path::Path;

use create::Modelfile;
use create::go_template::to_jinja;
use serde_json::json;
use template::{ChatTemplate, RenderInput};

use crate::sections::text;

/// The input: the kind, then a Modelfile or a template.
pub fn body(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else { return };
    let source = text(rest);
    if kind % 2 == 0 {
        if let Ok(file) = Modelfile::parse(&source) {
            let lines = source.lines().count();
            assert!(file.instructions.iter().all(|one| (1..=lines).contains(&one.line)), "a line that the file has");
            // A name that may be a path on this machine does not test how files are parsed.
            if file.instructions.iter().all(|one| one.name != "FROM" || !one.text.contains(['/', '.', '~'])) {
                let _ = black_box(file.recipe(Path::new("/nowhere")));
            }
        }
    } else if let Ok(jinja) = to_jinja(&source) {
        // A translation may be longer than a template may be.
        if let Ok(template) = ChatTemplate::new(&jinja, "", "") {
            let messages =
                json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]);
            let _ = black_box(template.render(&RenderInput { messages, add_generation_prompt: true, ..RenderInput::default() }));
        }
    }
}
