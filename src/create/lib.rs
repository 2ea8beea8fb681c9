//! Makes models of the store: variants of models with a system message, a template and parameters of their own, and models from files.
//!
//! A [`Recipe`] says what is made. A Modelfile ([`Modelfile`]) or a client's request becomes a recipe, and [`Maker`] follows it.
//! [`OllamaFolder`] finds the models that Ollama has on this machine.
//!
//! # Invariants
//! - A model appears whole or not at all, and an error leaves nothing behind.
//! - No weights are copied: a made model links to the files that it was made from. So it outlives them, and there are no circles.
//! - What is not supported is an error that names it, with its line if it has one.

mod error;
pub mod go_template;
mod maker;
mod modelfile;
mod ollama_folder;
mod recipe;

pub use error::CreateError;
pub use maker::{Maker, made_id};
pub use modelfile::{Instruction, MAX_MODELFILE, Modelfile, ModelfileError};
pub use ollama_folder::{FolderModel, OllamaFolder, default_folder};
pub use recipe::{AdapterOrigin, Changes, Origin, Recipe, TemplateText, catalogue_name};
