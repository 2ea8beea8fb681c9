//! [`Module`]: the tensors of one module in `adapter_model.safetensors`.

use std::borrow::Cow;

use convert::Tensor;

/// The prefix that PEFT's classes put before the names of modules.
const PREFIX: &str = "base_model.model.";

/// The tensors of a module, as indexes into the file's.
#[derive(Debug, Default)]
pub struct Module<'a> {
    /// The module's name in the checkpoint.
    pub name: &'a str,
    a: Option<usize>,
    b: Option<usize>,
    table_a: Option<usize>,
    table_b: Option<usize>,
    pub magnitude: Option<usize>,
    /// Weights in place of the model's.
    pub saved: Option<usize>,
    /// The model's own weights.
    pub base: Option<usize>,
}

impl Module<'_> {
    /// The name in messages.
    pub fn shown(&self) -> Cow<'_, str> {
        outside::in_line(self.name)
    }

    /// `lora_A` and `lora_B`
    pub fn halves(&self) -> Result<Option<[usize; 2]>, String> {
        self.both([("lora_A", self.a), ("lora_B", self.b)])
    }

    /// `lora_embedding_A` and `lora_embedding_B`
    pub fn table_halves(&self) -> Result<Option<[usize; 2]>, String> {
        self.both([("lora_embedding_A", self.table_a), ("lora_embedding_B", self.table_b)])
    }

    fn both(&self, halves: [(&str, Option<usize>); 2]) -> Result<Option<[usize; 2]>, String> {
        match halves {
            [(_, None), (_, None)] => Ok(None),
            [(_, Some(a)), (_, Some(b))] => Ok(Some([a, b])),
            [(has, Some(_)), (lacks, _)] | [(lacks, _), (has, _)] => Err(format!("{} has {has}, but no {lacks}", self.shown())),
        }
    }
}

/// The modules of a file, in the order of their first tensor.
///
/// # Errors
/// Names a tensor that is none of an adapter that can be used, or that occurs twice.
pub fn modules(tensors: &[Tensor]) -> Result<Vec<Module<'_>>, String> {
    let mut modules: Vec<Module> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for (index, tensor) in tensors.iter().enumerate() {
        let shown = || outside::in_line(&tensor.name);
        let Some(rest) = tensor.name.strip_prefix(PREFIX) else {
            return Err(format!("tensor {} does not begin with {PREFIX}, as those of PEFT do", shown()));
        };
        let Some((name, end)) = ENDS.iter().find_map(|&(text, end)| Some((rest.strip_suffix(text)?, end))) else {
            let why = WHY_NOT.iter().find(|(part, _)| rest.contains(part)).map_or("is not a part of a LoRA adapter", |(_, why)| why);
            return Err(format!("tensor {} {why}", shown()));
        };
        let place = *places.entry(name).or_insert_with(|| {
            modules.push(Module { name, ..Module::default() });
            modules.len() - 1
        });
        if end(&mut modules[place]).replace(index).is_some() {
            return Err(format!("tensor {} occurs twice, under two names", shown()));
        }
    }
    match modules.is_empty() {
        true => Err("the adapter has no tensors".to_owned()),
        false => Ok(modules),
    }
}

type End = for<'m, 'a> fn(&'m mut Module<'a>) -> &'m mut Option<usize>;

/// The ends of names, with what a tensor of that name is. `.weight` is the end of others, too.
const ENDS: &[(&str, End)] = &[
    (".lora_A.weight", |module| &mut module.a),
    (".lora_B.weight", |module| &mut module.b),
    (".lora_embedding_A", |module| &mut module.table_a),
    (".lora_embedding_B", |module| &mut module.table_b),
    (".lora_magnitude_vector", |module| &mut module.magnitude),
    (".lora_magnitude_vector.weight", |module| &mut module.magnitude),
    (".base_layer.weight", |module| &mut module.base),
    (".weight", |module| &mut module.saved),
];

/// Parts of names of tensors that cannot be used, and why.
const WHY_NOT: &[(&str, &str)] = &[
    ("trainable_tokens", "holds single rows of a table (trainable_token_indices), which cannot be used: merge the adapter"),
    ("bias", "is a bias, which adapters cannot change: train with bias = \"none\", or merge the adapter"),
];
