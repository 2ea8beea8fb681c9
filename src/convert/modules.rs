//! [`parts_of`]: the tensors of a GGUF file that hold the weights of a checkpoint's module. Adapters are trained on modules.

use crate::assign::{bare, choices, places};
use crate::families;
use crate::family::{Shape, TensorTransform};
use crate::pattern::filled;
use crate::rows::RowSelection;

/// The sizes of a model's heads, on which the order of rows depends.
#[derive(Clone, Copy, Debug)]
pub struct HeadSizes {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// The number of rotated elements per head.
    pub rotated: usize,
}

/// A tensor that holds rows of a module's matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModulePart {
    /// The tensor's name, for example `blk.0.attn_q.weight`.
    pub tensor: String,
    /// The matrix of the stack that the module is.
    pub expert: Option<u32>,
    how: TensorTransform,
}

impl ModulePart {
    /// The module's rows in the order of the tensor, of a matrix with `rows` rows. None if the rows do not fit the heads.
    pub fn rows(&self, rows: usize, sizes: &HeadSizes) -> Option<Vec<usize>> {
        let count = |n: usize| u32::try_from(n).ok();
        let shape = Shape {
            heads: count(sizes.heads)?,
            kv_heads: count(sizes.kv_heads).filter(|&count| count > 0)?,
            head_dim: count(sizes.head_dim)?,
            rotated: count(sizes.rotated)?,
            ..Shape::default()
        };
        let mut all = Vec::new();
        // A vector of the rows, because columns do not matter here.
        for selection in choices(self.how, &[rows as u64, 1], &shape) {
            let selection = if selection == RowSelection::Columns { RowSelection::All } else { selection };
            all.extend((0..selection.count(rows as u64, 1)?).map(|row| selection.source(row) as usize));
        }
        Some(all)
    }

    /// Whether the checkpoint stores the matrix with inputs as rows.
    pub fn is_transposed(&self) -> bool {
        self.how == TensorTransform::Transposed
    }
}

/// The classes of `transformers` whose checkpoints become files of an architecture.
pub fn classes_of(arch: &str) -> Vec<&'static str> {
    families::families().filter(|family| family.arch == arch).flat_map(|family| family.classes).copied().collect()
}

/// The tensors that hold the weights of a module, such as `model.layers.0.self_attn.q_proj`. Empty if no checkpoint of the architecture has
/// the module.
pub fn parts_of(arch: &str, module: &str) -> Vec<ModulePart> {
    let name = format!("{}.weight", bare(module));
    let mut parts: Vec<ModulePart> = Vec::new();
    for family in families::families().filter(|family| family.arch == arch) {
        for (_, rule, numbers, ending) in places(family, &name) {
            let tensor = format!("{}{ending}", filled(rule.to, &numbers));
            let expert = numbers.get(1).copied().filter(|_| rule.how == TensorTransform::Stacked);
            let part = ModulePart { tensor, expert, how: rule.how };
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: HeadSizes = HeadSizes { heads: 4, kv_heads: 2, head_dim: 4, rotated: 4 };

    fn only(arch: &str, module: &str) -> ModulePart {
        let parts = parts_of(arch, module);
        assert_eq!(parts.len(), 1, "{parts:?}");
        parts.into_iter().next().unwrap()
    }

    #[test]
    fn modules_lie_in_the_tensors_of_their_architecture() {
        let query = only("llama", "model.layers.7.self_attn.q_proj");
        assert_eq!((query.tensor.as_str(), query.expert), ("blk.7.attn_q.weight", None));
        assert_eq!(query.rows(8, &SIZES), Some(vec![0, 2, 1, 3, 4, 6, 5, 7]));
        assert_eq!(query.rows(7, &SIZES), None);
        assert_eq!(only("qwen3", "model.layers.7.self_attn.q_proj").rows(4, &SIZES), Some(vec![0, 1, 2, 3]));
        assert_eq!(only("gemma3", "model.language_model.layers.1.mlp.up_proj").tensor, "blk.1.ffn_up.weight");
        let expert = only("qwen3moe", "model.layers.2.mlp.experts.11.down_proj");
        assert_eq!((expert.tensor.as_str(), expert.expert), ("blk.2.ffn_down_exps.weight", Some(11)));
        assert_eq!(only("llama", "model.layers.0.block_sparse_moe.experts.3.w2").expert, Some(3));
        assert!(only("gpt2", "transformer.h.0.attn.c_attn").is_transposed());
        assert!(parts_of("llama", "model.layers.0.self_attn.qkv_proj").is_empty());
        assert_eq!(classes_of("qwen3"), ["Qwen3ForCausalLM"]);
    }

    #[test]
    fn a_module_may_lie_in_two_tensors_or_in_groups_of_rows() {
        let halves = parts_of("granitemoe", "model.layers.0.shared_mlp.input_linear");
        let taken: Vec<_> = halves.iter().map(|part| (part.tensor.as_str(), part.rows(4, &SIZES).unwrap())).collect();
        assert_eq!(taken, [("blk.0.ffn_gate_shexp.weight", vec![0, 1]), ("blk.0.ffn_up_shexp.weight", vec![2, 3])]);
        let sizes = HeadSizes { heads: 2, kv_heads: 2, head_dim: 1, rotated: 0 };
        let grouped = only("gptneox", "gpt_neox.layers.0.attention.query_key_value");
        assert_eq!(grouped.rows(6, &sizes), Some(vec![0, 3, 1, 4, 2, 5]));
    }
}
