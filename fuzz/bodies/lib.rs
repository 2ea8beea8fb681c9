//! The bodies of the fuzz targets, as functions of bytes. An ordinary test runs the same functions over the seeds and over earlier
//! findings, without a fuzzer (`tests/inputs.rs`).
//!
//! A body returns normally for every input, whether the input is refused or used. It panics if the product breaks a promise, such as "text
//! never becomes a control token".

mod adapter;
mod answer;
mod config_files;
mod engine_run;
mod gguf_file;
mod grammars;
mod memory_file;
mod modelfile;
mod packed;
mod picture;
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
/// A request's body for each endpoint, and its prompt.
pub const REQUEST: Target = Target { name: "request", body: request::body, seeds: seeds::request };
/// A request's compressed body.
pub const PACKED: Target = Target { name: "packed", body: packed::body, seeds: seeds::packed };
/// A picture, and the tiles of a model.
pub const PICTURE: Target = Target { name: "picture", body: picture::body, seeds: seeds::picture };
/// Responses of a download's server, and the manifest in the store.
pub const PULL: Target = Target { name: "pull", body: pull::body, seeds: seeds::pull };
/// Configuration files, key files, and settings in the environment.
pub const CONFIG: Target = Target { name: "config", body: config_files::body, seeds: seeds::config };
/// An answer with calls and reasoning, in each family's syntax.
pub const ANSWER: Target = Target { name: "answer", body: answer::body, seeds: seeds::answer };

/// A Modelfile, or a template of Go's and what its translation renders.
pub const MODELFILE: Target = Target { name: "modelfile", body: modelfile::body, seeds: seeds::modelfile };

/// An adapter in a GGUF file or in PEFT's folder.
pub const ADAPTER: Target = Target { name: "adapter", body: adapter::body, seeds: seeds::adapter };

pub const TARGETS: [Target; 15] = [
    GGUF,
    ENGINE,
    TOKENIZER,
    TOKENIZER_JSON,
    TEMPLATE,
    SCHEMA,
    GRAMMAR,
    REQUEST,
    PACKED,
    PICTURE,
    PULL,
    CONFIG,
    ANSWER,
    MODELFILE,
    ADAPTER,
];

/// Ignores panics of llguidance, which catches its own panics and reports them as errors. A fuzzer would otherwise stop at the first one.
pub fn let_compilers_panic() {
    std::panic::set_hook(Box::new(|panic| {
        if std::thread::current().name() == Some("small stack") && std::env::var_os("RUST_BACKTRACE").is_some() {
            eprintln!("{panic}");
        }
    }));
}

impl Target {
    /// Runs the body over an input, on a thread with a stack of 2 MiB like the server's threads.
    ///
    /// # Panics
    /// If the body panics.
    pub fn run(&self, input: &[u8]) {
        small_stack::run(self.body, input);
    }

    /// Inputs that show a fuzzer the target's format.
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        (self.seeds)()
    }
}
