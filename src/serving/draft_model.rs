//! Draft models: smaller models with the same vocabulary, which guess the tokens of another model's answers.

use std::path::Path;

use anyhow::{Context, ensure};

use super::load::ModelFile;
use engine::{BackendKind, Device, Engine, EngineOptions, Need};
use gguf::Backing;
use scheduler::DraftEngine;

/// The fewest rows of a draft model's step, which reads prompts in parts of so many.
const MAX_ROWS: usize = 128;

/// An open draft model that fits its target.
pub struct DraftFile(ModelFile);

impl DraftFile {
    /// Opens a draft model for `target`.
    ///
    /// # Errors
    /// The file is no model that generates text, it has recurrent states, or its vocabulary is another one. Both files are named.
    pub fn open(path: &Path, backing: Backing, target: &ModelFile) -> anyhow::Result<Self> {
        let file = ModelFile::open(path, backing)?;
        let (own, of) = (path.display(), target.path().display());
        let generates = !file.spec().arch.bidirectional && !file.embeds();
        ensure!(generates, "{own} makes vectors and cannot draft the answers of {of}: name a model that generates text");
        ensure!(
            !file.is_recurrent(),
            "{own} has a recurrent state, which cannot go back behind a wrong guess, so it cannot draft the answers of {of}: name a model \
             without one"
        );
        if let Some(fault) = target.tokenizer().draft_fault(file.tokenizer()) {
            anyhow::bail!("{own} has another vocabulary than {of}, whose answers it shall draft: {fault}");
        }
        Ok(Self(file))
    }

    /// The options of the draft model's engine beside a target with these.
    fn options(&self, target: &EngineOptions) -> EngineOptions {
        EngineOptions {
            context: target.context.min(self.0.context_length()),
            max_batch_tokens: MAX_ROWS.max(target.max_slots),
            max_adapters: 0,
            draft_states: 0,
            draft_head: false,
            ..target.clone()
        }
    }

    /// The memory that the draft model needs on a device beside a target with these options.
    ///
    /// # Errors
    /// The device is none that runs draft models, or the model cannot run there.
    pub fn need(&self, device: &dyn Device, target: &EngineOptions) -> anyhow::Result<Need> {
        let kind = device.place().0;
        ensure!(
            kind == BackendKind::Cpu,
            "draft models run on the CPU alone so far, not on {}: use the CPU (engine.backend, --backend), or name no draft model",
            kind.title()
        );
        Ok(self.0.need(device, &self.options(target))?)
    }

    /// Opens the draft model's engine beside that of its target, on the same device.
    ///
    /// # Errors
    /// Those of [`need`](Self::need), and of the engine.
    pub fn open_beside(&self, target: &dyn Engine, options: &EngineOptions) -> anyhow::Result<DraftEngine> {
        let (info, options) = (target.info(), self.options(options));
        let device = engine::find_device(Some(info.backend), info.index)?;
        self.need(&*device, &options)?;
        let num_ids = self.0.spec().vocab_size.min(target.spec().vocab_size);
        let named = format!("the draft model {}", self.0.path().display());
        let engine = engine::open_on(device, self.0.weights().clone(), &options).context(named)?;
        let pass = DraftEngine::pass_time(&info, &engine.info());
        Ok(DraftEngine { engine, num_ids, context: options.context, pass })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf::{GgufBuilder, Value};
    use model::testing::TinyModel;
    use model::{ARCHS, Arch};
    use std::path::PathBuf;

    fn write(dir: &Path, name: &str, arch: &'static Arch, edit: impl Fn(&mut GgufBuilder)) -> PathBuf {
        let path = dir.join(name);
        let mut file = TinyModel { tokenizer: true, ..TinyModel::new(arch) }.build();
        edit(&mut file);
        file.write(&path).unwrap();
        path
    }

    #[test]
    fn a_draft_model_that_does_not_fit_is_refused_with_both_names() {
        let dir = tempfile::tempdir().unwrap();
        let target = write(dir.path(), "target.gguf", &ARCHS[0], |_| {});
        let target = ModelFile::open(&target, Backing::Mapped).unwrap();
        let refused = |name: &str, arch: &'static Arch, edit: &dyn Fn(&mut GgufBuilder)| {
            let path = write(dir.path(), name, arch, edit);
            DraftFile::open(&path, Backing::Mapped, &target).err().map(|error| format!("{error:#}"))
        };
        assert_eq!(refused("same.gguf", &ARCHS[0], &|_| {}), None);
        let other = refused("other.gguf", &ARCHS[0], &|file| file.set("tokenizer.ggml.add_bos_token", Value::Bool(true))).unwrap();
        for words in ["target.gguf", "other.gguf has another vocabulary", "BOS of a prompt"] {
            assert!(other.contains(words), "{other}");
        }
    }

    #[test]
    fn a_draft_model_keeps_to_its_own_context() {
        let dir = tempfile::tempdir().unwrap();
        let target = write(dir.path(), "target.gguf", &ARCHS[0], |_| {});
        let target = ModelFile::open(&target, Backing::Mapped).unwrap();
        let short = write(dir.path(), "short.gguf", &ARCHS[0], |file| file.set("llama.context_length", 64u32));
        let draft = DraftFile::open(&short, Backing::Mapped, &target).unwrap();
        let options = |context| EngineOptions { threads: 1, context, max_slots: 2, ..EngineOptions::default() };
        assert_eq!((draft.options(&options(200)).context, draft.options(&options(32)).context), (64, 32));
        let cpu = engine::device(BackendKind::Cpu, 0).unwrap();
        let need = draft.need(&*cpu, &options(200)).unwrap();
        assert!(need.weights > 0 && need.cache > 0, "{need:?}");
        let engine = engine::open_on(cpu, target.weights().clone(), &options(200)).unwrap();
        let draft = draft.open_beside(&*engine, &options(200)).unwrap();
        assert_eq!((draft.context, draft.pass), (64, 1.5), "the same weights");
    }
}
