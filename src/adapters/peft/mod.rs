//! Reads the folders that PEFT writes: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! PEFT names the modules of the checkpoint that it trained on. The converter's tables say in which tensors of a GGUF file these lie, and
//! in which order their rows are there: files of `llama` hold the rows of queries and keys in another order.

mod config;
mod files;
mod gain;
mod modules;
mod pattern;
mod tensors;
#[cfg(test)]
mod tests;

use std::path::Path;

use convert::{HeadSizes, ModulePart, Shard, classes_of, parts_of};
use engine::LowRank;
use model::Weights;

use self::config::PeftConfig;
use self::files::{CONFIG, TENSORS, fault_of};
use self::modules::{Module, modules};
use self::tensors::Tensors;
use crate::assemble::Assembly;
use crate::budget::Budget;
use crate::lora::{check_rank, transposed};
use crate::open_adapter::OpenAdapter;
use crate::targets::{Placement, Shape, Targets};

/// A folder that is being read.
struct Folder<'a> {
    config: PeftConfig,
    tensors: Tensors<'a>,
    weights: &'a Weights,
    targets: Targets<'a>,
    assembly: Assembly,
    budget: Budget,
    unused: Vec<String>,
}

/// Opens a folder.
///
/// # Errors
/// Names the file, and the field or tensor of it that cannot be read or does not fit the model.
pub fn open(dir: &Path, weights: &Weights) -> Result<OpenAdapter, String> {
    let config = PeftConfig::read(&dir.join(CONFIG), weights)?;
    let path = dir.join(TENSORS);
    if !path.exists() {
        return Err(match dir.join("adapter_model.bin").exists() {
            true => "holds adapter_model.bin, a pickle, which runs code when it is read: save the adapter as safetensors".to_owned(),
            false => format!("has no {TENSORS} beside {CONFIG}"),
        });
    }
    let (shard, list) = Shard::open(&path).map_err(fault_of)?;
    let modules = modules(&list).map_err(|fault| format!("{TENSORS}: {fault}"))?;
    config.check_saved(&modules)?;
    let mut folder = Folder {
        config,
        tensors: Tensors::new(shard, &list),
        weights,
        targets: Targets::of(weights),
        assembly: Assembly::default(),
        budget: Budget::default(),
        unused: Vec::new(),
    };
    for module in &modules {
        let in_tensors = |fault: String| if fault.starts_with(CONFIG) { fault } else { format!("{TENSORS}: {fault}") };
        folder.read(module).map_err(in_tensors)?;
    }
    let changes = folder.assembly.finish(&folder.targets.all, &mut folder.budget)?;
    weights.file.verify_unchanged().map_err(|error| error.fault)?;
    OpenAdapter::of_changes(changes, folder.config.invocation, folder.unused)
}

impl Folder<'_> {
    fn read(&mut self, module: &Module) -> Result<(), String> {
        let parts = self.parts(module)?;
        if let Some(saved) = module.saved {
            return self.replace(module, saved, &parts);
        }
        if let Some(base) = module.base {
            self.check_base(module, base, &parts)?;
        }
        match (module.halves()?, module.table_halves()?) {
            (Some(halves), None) => self.change(module, halves, &parts),
            (None, Some(halves)) => self.change_table(module, halves, &parts),
            (None, None) if module.magnitude.is_none() => Ok(()),
            _ => Err(format!("{}: expected lora_A and lora_B, or lora_embedding_A and lora_embedding_B", module.shown())),
        }
    }

    /// The tensors of the model's file in which a module lies.
    fn parts(&self, module: &Module) -> Result<Vec<ModulePart>, String> {
        let arch = self.weights.spec.arch.name;
        let parts = parts_of(arch, module.name);
        if !parts.is_empty() {
            return Ok(parts);
        }
        let classes = classes_of(arch);
        Err(match classes.is_empty() {
            true => format!("{}: modules of {arch} are not known: convert the adapter to GGUF first", module.shown()),
            false => format!("no tensor of {arch} ({}) takes the module {}{}", classes.join(", "), module.shown(), self.made_for()),
        })
    }

    /// What the adapter was made for, and what the model is.
    fn made_for(&self) -> String {
        let spec = &self.weights.spec;
        let name = if spec.name.is_empty() { "without a name" } else { &spec.name };
        format!(": the adapter was made for {}, and the model is {} ({})", self.config.base_name(), outside::in_line(name), spec.arch.name)
    }

    /// The sizes of the heads in a tensor's layer.
    fn heads(&self, tensor: &str) -> HeadSizes {
        let spec = &self.weights.spec;
        let layer = tensor.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        let own = layer.and_then(|layer| spec.layers.get(layer)?.attention()).or_else(|| spec.attention());
        let rotated = spec.layers.iter().filter_map(|layer| layer.attention()?.rope).map(|rope| rope.dim).max().unwrap_or(0);
        own.map_or(HeadSizes { heads: 0, kv_heads: 0, head_dim: 0, rotated }, |own| HeadSizes {
            heads: own.num_heads,
            kv_heads: own.num_kv_heads,
            head_dim: own.head_dim,
            rotated,
        })
    }

    /// The rows of a module in a tensor's order.
    fn rows(&self, module: &Module, part: &ModulePart, rows: usize) -> Result<Vec<usize>, String> {
        let misfit = || format!("{} has {rows} rows, which do not fit the model's heads{}", module.shown(), self.made_for());
        part.rows(rows, &self.heads(&part.tensor)).ok_or_else(misfit)
    }

    /// Where the rows of a tensor's part lie in the model.
    fn place(&mut self, module: &Module, part: &ModulePart, shape: Shape) -> Result<Vec<Placement>, String> {
        let name = match part.expert {
            Some(expert) => part.tensor.replace("_exps.", &format!(".{expert}.")),
            None => part.tensor.clone(),
        };
        let placements = self.targets.place(&name, shape);
        let placements = placements.map_err(|fault| format!("{}: {fault}{}", module.shown(), self.made_for()))?;
        if placements.is_empty() {
            self.unused.push(module.name.to_owned());
        }
        Ok(placements.to_vec())
    }

    /// Checks the rank that the configuration gives a module, and computes the scale.
    fn scale(&self, module: &Module, rank: usize, shape: Shape) -> Result<f32, String> {
        check_rank(module.name, rank, shape)?;
        let expected = self.config.rank_of(module.name);
        match expected == rank as u64 {
            true => self.config.scale_of(module.name, rank),
            false => Err(format!("{} has the rank {rank}, but {CONFIG} says {expected} (r, rank_pattern)", module.shown())),
        }
    }

    /// W' = gain ⊙ (W + scale · B A)
    fn change(&mut self, module: &Module, [a, b]: [usize; 2], parts: &[ModulePart]) -> Result<(), String> {
        let ([rank, cols], [rows, other]) = (self.tensors.matrix(a)?, self.tensors.matrix(b)?);
        if rank != other {
            return Err(format!("{}: lora_A is [{rank}, {cols}] and lora_B [{rows}, {other}], so their ranks differ", module.shown()));
        }
        let whole = Shape { count: 1, rows, cols };
        let scale = self.scale(module, rank, whole)?;
        let (a, b) = (self.tensors.numbers(a, &mut self.budget)?, self.tensors.numbers(b, &mut self.budget)?);
        let magnitude = match (module.magnitude, self.config.uses_dora) {
            (Some(index), true) => Some(self.tensors.vector(index, rows, &mut self.budget)?),
            (None, false) => None,
            (None, true) => return Err(format!("{} has no lora_magnitude_vector, although use_dora is true", module.shown())),
            (Some(_), false) => return Err(format!("{} has a lora_magnitude_vector, although use_dora is false", module.shown())),
        };
        for part in parts {
            let order = self.rows(module, part, rows)?;
            let shape = Shape { rows: order.len(), ..whole };
            let placements = self.place(module, part, shape)?;
            let b: Vec<f32> = order.iter().flat_map(|&row| &b[row * rank..][..rank]).copied().collect();
            let mut low = LowRank { rank, a: a.clone(), b, scale, gain: None };
            if let Some(magnitude) = &magnitude {
                let magnitude: Vec<f32> = order.iter().map(|&row| magnitude[row]).collect();
                let gain = gain::of(&self.targets, &placements, &low, magnitude);
                low.gain = Some(gain.map_err(|fault| format!("{}: {fault}", module.shown()))?);
            }
            self.assembly.add(module.name, low, shape, &placements);
        }
        Ok(())
    }

    /// The change of a table: row i becomes E[i] + scale · B a, with column i of A as a.
    fn change_table(&mut self, module: &Module, [a, b]: [usize; 2], parts: &[ModulePart]) -> Result<(), String> {
        let ([rank, rows], [cols, other]) = (self.tensors.matrix(a)?, self.tensors.matrix(b)?);
        if rank != other {
            let text = format!("lora_embedding_A is [{rank}, {rows}] and lora_embedding_B [{cols}, {other}], so their ranks differ");
            return Err(format!("{}: {text}", module.shown()));
        }
        if module.magnitude.is_some() || self.config.uses_dora {
            return Err(format!("{}: DoRA of embeddings scales columns, which cannot be used: merge the adapter", module.shown()));
        }
        let [part] = parts else { return Err(format!("{} is not a table of embeddings", module.shown())) };
        let shape = Shape { count: 1, rows, cols };
        let scale = self.scale(module, rank, shape)?;
        let (a, b) = (self.tensors.numbers(a, &mut self.budget)?, self.tensors.numbers(b, &mut self.budget)?);
        let placements = self.place(module, part, shape)?;
        let low = LowRank { rank, a: transposed(&b, rank), b: transposed(&a, rows), scale, gain: None };
        self.assembly.add(module.name, low, shape, &placements);
        Ok(())
    }

    /// A module that was trained and saved whole.
    fn replace(&mut self, module: &Module, saved: usize, parts: &[ModulePart]) -> Result<(), String> {
        if module.base.is_some() || module.magnitude.is_some() || module.halves()?.or(module.table_halves()?).is_some() {
            return Err(format!("{} has both saved weights and an adapter: expected one of them", module.shown()));
        }
        for part in parts {
            let (shape, all) = self.saved(module, saved, part)?;
            let placements = self.place(module, part, shape)?;
            if !placements.is_empty() {
                self.assembly.replace(module.name, all, &placements, &self.targets.all)?;
            }
        }
        Ok(())
    }

    /// The saved weights of a module that lie in a tensor, in the tensor's order. A vector has one row.
    fn saved(&mut self, module: &Module, saved: usize, part: &ModulePart) -> Result<(Shape, Vec<f32>), String> {
        let [rows, cols] = self.tensors.rows_and_cols(saved)?;
        let all = self.tensors.numbers(saved, &mut self.budget)?;
        if rows == 1 {
            return Ok((Shape { count: 1, rows, cols }, all));
        }
        let (rows, cols, all) = if part.is_transposed() { (cols, rows, transposed(&all, cols)) } else { (rows, cols, all) };
        let order = self.rows(module, part, rows)?;
        let taken = order.iter().flat_map(|&row| &all[row * cols..][..cols]).copied().collect();
        Ok((Shape { count: 1, rows: order.len(), cols }, taken))
    }

    /// Checks that the frozen weights that PEFT saves beside an adapter of embeddings are the model's.
    fn check_base(&mut self, module: &Module, base: usize, parts: &[ModulePart]) -> Result<(), String> {
        for part in parts {
            let (shape, all) = self.saved(module, base, part)?;
            let placements = self.place(module, part, shape)?;
            let distance = gain::distance(&self.targets, &placements, &all)?;
            self.budget.give_back(all.len());
            if distance > gain::SAME {
                let text = format!("base_layer.weight differs from the model's weights by {:.0} %", 100.0 * distance);
                return Err(format!("{}: {text}{}", module.shown(), self.made_for()));
            }
        }
        Ok(())
    }
}
