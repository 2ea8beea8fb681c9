//! What the fuzz targets run, as functions of bytes. The same functions run over the seeds and over what fuzzing found in an ordinary
//! test, without a fuzzer (`tests/inputs.rs`).
//!
//! A body ends normally for every input: what it reads is refused or used. It panics if the product breaks a promise, such as "text never
//! becomes a control token".

mod answer;
mod config_files;
mod engine_run;
mod gguf_file;
mod grammars;
mod memory_file;
mod packed;
mod pull;
mod request;
mod sections;
pub mod seeds;
mod small_stack;
mod template_source;
mod tokenizers;
mod vocabulary;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    pub name: &'static str,
    body: fn(&[u8]),
    seeds: fn() -> Vec<Vec<u8>>,
}

/// A GGUF file: its header, hyperparameters, tensors, vocabulary and chat template.
pub const GGUF: Target = Target { name: "gguf", body: gguf_file::body, seeds: seeds::gguf };
/// A GGUF file that an engine runs for a few tokens.
pub const ENGINE: Target = Target { name: "engine", body: engine_run::body, seeds: seeds::engine };
/// A vocabulary in GGUF's keys, and a text.
pub const TOKENIZER: Target = Target { name: "tokenizer", body: tokenizers::of_metadata, seeds: seeds::tokenizer };
/// A `tokenizer.json`, and a text.
pub const TOKENIZER_JSON: Target = Target { name: "tokenizer_json", body: tokenizers::of_json, seeds: seeds::tokenizer_json };
/// A chat template, and what it renders.
pub const TEMPLATE: Target = Target { name: "template", body: template_source::body, seeds: seeds::template };
/// A JSON Schema, and an answer under it.
pub const SCHEMA: Target = Target { name: "schema", body: grammars::of_schema, seeds: seeds::schema };
/// A regular expression or a grammar, and an answer under it.
pub const GRAMMAR: Target = Target { name: "grammar", body: grammars::of_text, seeds: seeds::grammar };
/// The body of a request to each endpoint, and its prompt.
pub const REQUEST: Target = Target { name: "request", body: request::body, seeds: seeds::request };
/// A compressed body of a request.
pub const PACKED: Target = Target { name: "packed", body: packed::body, seeds: seeds::packed };
/// What a download's other side sends, and the manifest in the store.
pub const PULL: Target = Target { name: "pull", body: pull::body, seeds: seeds::pull };
/// Files of configuration and of keys, and settings in the environment.
pub const CONFIG: Target = Target { name: "config", body: config_files::body, seeds: seeds::config };
/// An answer with calls and reasoning, in each family's syntax.
pub const ANSWER: Target = Target { name: "answer", body: answer::body, seeds: seeds::answer };

pub const TARGETS: [Target; 12] =
    [GGUF, ENGINE, TOKENIZER, TOKENIZER_JSON, TEMPLATE, SCHEMA, GRAMMAR, REQUEST, PACKED, PULL, CONFIG, ANSWER];

/// Lets llguidance panic, which catches its own panics and reports them as errors. A fuzzer would end at the first.
pub fn let_compilers_panic() {
    std::panic::set_hook(Box::new(|panic| {
        if std::thread::current().name() == Some("small stack") && std::env::var_os("RUST_BACKTRACE").is_some() {
            eprintln!("{panic}");
        }
    }));
}

impl Target {
    /// Runs the body over an input, on a thread with a stack of 2 MiB as the server's own threads have.
    ///
    /// # Panics
    /// The body panicked.
    pub fn run(&self, input: &[u8]) {
        small_stack::run(self.body, input);
    }

    /// Inputs that show the format to a fuzzer.
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        (self.seeds)()
    }
}
