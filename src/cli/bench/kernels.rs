//! `--kernels`: what the measured steps would run.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use super::{BenchArgs, GPU_CHUNK};
use crate::config::Backend;
use crate::engine::{BackendKind, KernelsOn, StepSize, list_kernels};
use crate::gguf::GgufFile;
use crate::model::Weights;

impl BenchArgs {
    /// The kernels of each decode step that would be measured, and of a step of a prompt.
    pub fn kernels_of(&self, arch: &str, file: &Path) -> anyhow::Result<String> {
        let kind = match self.device.backend(Backend::Auto)? {
            Backend::Cpu => BackendKind::Cpu,
            Backend::Auto | Backend::Cuda => BackendKind::Cuda,
        };
        let on = match arch {
            "" => KernelsOn::Device(self.device.index()),
            named => KernelsOn::Arch(named.to_owned()),
        };
        let weights = Weights::load(Arc::new(GgufFile::open(file)?))?;
        let mut out = String::new();
        for (title, size) in self.steps() {
            let _ = writeln!(out, "{title}:\n{}", list_kernels(&weights, kind, &on, size)?);
        }
        Ok(out)
    }

    /// The steps, with what each one computes.
    fn steps(&self) -> Vec<(String, StepSize)> {
        let prompt = self.prompt.min(self.prefill_chunk.unwrap_or(GPU_CHUNK));
        let of_prompt = (self.context.is_empty() && prompt > 1)
            .then(|| (format!("a prompt of {prompt} tokens"), StepSize { sequences: 1, rows: prompt, context: prompt }));
        let whole = [self.prompt];
        let contexts = if self.context.is_empty() { &whole[..] } else { &self.context[..] };
        let decode = contexts.iter().flat_map(|&context| {
            // the middle of the answer
            let context = context.max(1) + self.generate / 2;
            self.batch.iter().map(move |&sequences| {
                (format!("decoding {sequences} with contexts of {context} tokens"), StepSize { sequences, rows: 1, context })
            })
        });
        decode.chain(of_prompt).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn sizes(flags: &str) -> Vec<[u32; 3]> {
        let args = ["bench", "model.gguf", "--kernels=sm_90a"].into_iter().chain(flags.split_whitespace());
        let steps = Command::parse_from(args).bench.steps();
        steps.into_iter().map(|(_, size)| [size.sequences, size.rows, size.context]).collect()
    }

    #[test]
    fn the_steps_are_those_that_would_be_measured() {
        assert_eq!(sizes("--batch 1,8 --prompt 100 --gen 20"), [[1, 1, 110], [8, 1, 110], [1, 100, 100]]);
        assert_eq!(sizes("--prompt 5000 --gen 2"), [[1, 1, 5001], [1, 2048, 2048]]);
        assert_eq!(sizes("--context 0,8192 --gen 2"), [[1, 1, 2], [1, 1, 8193]]);
    }
}
