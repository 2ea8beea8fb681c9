//! [`Targets`]: the matrices of a model that adapters may change, by every name that a file may give them.

use std::collections::{HashMap, HashSet};

use model::{FUSED, StackLayout, TensorRole, Weight, Weights};

/// Matrices that a program multiplies with, and the table of tokens.
const PRODUCTS: &[TensorRole] = {
    use TensorRole::*;
    &[
        TokenEmbd,
        Output,
        Classifier,
        ClassifierOutput,
        AttnQ,
        AttnK,
        AttnV,
        AttnQkv,
        AttnOutput,
        AttnGate,
        AttnQA,
        AttnQB,
        AttnKvA,
        AttnKvB,
        FfnGate,
        FfnUp,
        FfnDown,
        FfnRouter,
        FfnGateExps,
        FfnUpExps,
        FfnDownExps,
        SharedRouter,
        FfnGateShexp,
        FfnUpShexp,
        FfnDownShexp,
        FfnGateChexps,
        FfnUpChexps,
        FfnDownChexps,
        PerLayerModelProj,
        PerLayerGate,
        PerLayerProj,
        AltupProj,
        AltupUnembdProj,
        AltupRouter,
        LaurelL,
        LaurelR,
        SsmIn,
        SsmX,
        SsmDt,
        SsmOut,
        SsmAlpha,
        SsmBeta,
        SsmBa,
        SsmFA,
        SsmFB,
        SsmGA,
        SsmGB,
        ShortConvIn,
        ShortConvOut,
    ]
};

/// `count` matrices of `rows` rows and `cols` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub count: usize,
    pub rows: usize,
    pub cols: usize,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.count {
            1 => write!(f, "{} rows of {} columns", self.rows, self.cols),
            count => write!(f, "{count} matrices of {} rows and {} columns", self.rows, self.cols),
        }
    }
}

/// A tensor that changes may name ([`engine::WeightChange::tensor`]).
#[derive(Debug)]
pub struct Target {
    pub name: String,
    pub shape: Shape,
    /// The roles that its rows have, with their layer and the first row in each matrix.
    roles: Vec<(TensorRole, usize, usize)>,
}

/// Where rows of a change lie in a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The index into [`Targets::all`].
    pub target: usize,
    /// The one matrix of the stack that is changed. None: all of them.
    pub matrix: Option<usize>,
    pub first_row: usize,
    pub rows: usize,
    /// The first of these rows in the change.
    pub from_row: usize,
}

/// What a name may mean, if the change has this shape.
#[derive(Debug)]
struct Meaning {
    shape: Shape,
    placements: Vec<Placement>,
}

pub struct Targets<'a> {
    weights: &'a Weights,
    pub all: Vec<Target>,
    meanings: HashMap<String, Vec<Meaning>>,
}

impl<'a> Targets<'a> {
    pub fn of(weights: &'a Weights) -> Self {
        let mut targets = Self { weights, all: Vec::new(), meanings: HashMap::new() };
        let mut by_name = HashMap::new();
        let mut slots: HashMap<(TensorRole, usize), (Shape, Placement)> = HashMap::new();
        let mut found: Vec<_> = weights.by_role.iter().filter(|((role, _), _)| PRODUCTS.contains(role)).collect();
        found.sort_by_key(|((role, layer), _)| (*layer, *role as usize));
        for (&(role, layer), weight) in found {
            let Some(shape) = shape_of(weights, role, layer) else { continue };
            let (name, whole) = targets.tensor_of(role, layer, weight, shape);
            let target = *by_name.entry(name.clone()).or_insert_with(|| {
                targets.all.push(Target { name, shape: whole, roles: Vec::new() });
                targets.all.len() - 1
            });
            let first_row = if whole == shape { 0 } else { weight.offset / weight.quant.row_bytes(weight.cols).max(1) };
            targets.all[target].roles.push((role, layer, first_row));
            slots.insert((role, layer), (shape, Placement { target, matrix: None, first_row, rows: shape.rows, from_row: 0 }));
        }
        targets.name_wholes();
        targets.name_unused();
        for (&(role, layer), &(shape, at)) in &slots {
            targets.name_role(role, layer, shape, at);
        }
        for layer in 0..weights.spec.num_layers() {
            targets.name_fused(layer, &slots);
        }
        targets
    }

    /// The name of the tensor that holds a role's rows, and its whole shape.
    fn tensor_of(&self, role: TensorRole, layer: usize, weight: &Weight, shape: Shape) -> (String, Shape) {
        let is_tied = || self.weights.get(TensorRole::TokenEmbd, 0).is_some_and(|table| table.tensor == weight.tensor);
        let info = &self.weights.file.tensors()[weight.tensor];
        match weight.stack.map(|stack| stack.place) {
            Some(StackLayout::Tensors(_)) => (role.name(layer), shape),
            None if role == TensorRole::Output && is_tied() => (role.name(layer), shape),
            _ => {
                let rows = (info.elements() as usize) / (shape.cols * shape.count).max(1);
                (info.name.clone(), Shape { rows, ..shape })
            }
        }
    }

    fn name_wholes(&mut self) {
        for index in 0..self.all.len() {
            let (name, shape) = (self.all[index].name.clone(), self.all[index].shape);
            let whole = Placement { target: index, matrix: None, first_row: 0, rows: shape.rows, from_row: 0 };
            self.add(name, shape, vec![whole]);
        }
    }

    /// Adds the matrices of the file that no role has: those of draft heads, and keys of layers that read another layer's.
    fn name_unused(&mut self) {
        let weights = self.weights;
        let of_roles = weights.by_role.values().flat_map(|weight| [Some(weight.tensor), weight.scale]);
        let used: HashSet<usize> = of_roles.flatten().chain(weights.part_tensors.iter().copied()).collect();
        for (_, tensor) in weights.file.tensors().iter().enumerate().filter(|(index, _)| !used.contains(index)) {
            let dim = |index: usize| tensor.dims.get(index).map_or(1, |&dim| dim as usize);
            if tensor.dims.len() > 1 && dim(3) == 1 {
                self.add(tensor.name.clone(), Shape { count: dim(2), rows: dim(1), cols: dim(0) }, Vec::new());
            }
        }
    }

    /// Adds the names of a role, and of the single matrices of a stack of experts.
    fn name_role(&mut self, role: TensorRole, layer: usize, shape: Shape, at: Placement) {
        let arch = self.weights.spec.arch;
        let usual = role.name(layer);
        let names = arch.names_of(role).map(|name| name.replace("{}", &layer.to_string()));
        for name in names.chain([usual.clone()]).collect::<Vec<_>>() {
            self.add(name, shape, vec![at]);
        }
        for matrix in (0..shape.count).filter(|_| usual.contains("_exps.")) {
            let one = Placement { matrix: Some(matrix), ..at };
            self.add(usual.replace("_exps.", &format!(".{matrix}.")), Shape { count: 1, ..shape }, vec![one]);
        }
    }

    /// Adds the names of tensors that hold the rows of several roles in other files of the architecture.
    fn name_fused(&mut self, layer: usize, slots: &HashMap<(TensorRole, usize), (Shape, Placement)>) {
        for (pattern, parts) in FUSED {
            let slots: Vec<_> = parts.iter().filter_map(|role| slots.get(&(*role, layer))).collect();
            let Some((first, _)) = slots.first().filter(|_| slots.len() > 1) else { continue };
            let (mut rows, mut placements) = (0, Vec::new());
            for (shape, at) in &slots {
                placements.push(Placement { from_row: rows, ..*at });
                rows += shape.rows;
            }
            if slots.iter().all(|(shape, _)| (shape.count, shape.cols) == (first.count, first.cols)) {
                self.add(pattern.replace("{}", &layer.to_string()), Shape { rows, ..*first }, placements);
            }
        }
    }

    fn add(&mut self, name: String, shape: Shape, placements: Vec<Placement>) {
        let meanings = self.meanings.entry(name).or_default();
        if meanings.iter().all(|meaning| meaning.shape != shape) {
            meanings.push(Meaning { shape, placements });
        }
    }

    /// Finds where the rows of a change lie that a file gives under `name`. Empty: in a matrix that the model does not use.
    ///
    /// # Errors
    /// Says why the model has no place for it.
    pub fn place(&self, name: &str, shape: Shape) -> Result<&[Placement], String> {
        let Some(meanings) = self.meanings.get(name) else { return Err(self.why_not(name)) };
        match meanings.iter().find(|meaning| meaning.shape == shape) {
            Some(meaning) => Ok(&meaning.placements),
            None => {
                let expected: Vec<String> = meanings.iter().map(|meaning| meaning.shape.to_string()).collect();
                Err(format!("{name}: the adapter changes {shape}, but the model has {}", expected.join(", or ")))
            }
        }
    }

    /// Says why no change may have this name.
    pub fn why_not(&self, name: &str) -> String {
        use TensorRole::*;
        let shown = outside::in_line(name);
        let Some(index) = self.weights.file.tensor_index(name) else {
            return format!("the model has no tensor {shown}");
        };
        let role = self.weights.by_role.iter().find(|(_, weight)| weight.tensor == index).map(|((role, _), _)| *role);
        let why = match role {
            Some(AttnKB | AttnVB) => "is a half of latent attention's combined matrix, which is not multiplied with by itself",
            Some(SsmConv | SsmConvQ | SsmConvK | SsmConvV | ShortConv) => "is a convolution",
            Some(PositionEmbd | TokenTypes | PerLayerTokenEmbd | NextnTokenEmbd) => "is a table that adapters cannot change",
            None => "is not used by the model",
            _ if name.contains("norm") => "is a norm",
            _ => "is no matrix that the model multiplies with",
        };
        format!("{shown} {why}: an adapter of it cannot be used")
    }

    /// Row `row` of matrix `matrix` of a target, as the model multiplies with it.
    pub fn base_row(&self, target: usize, matrix: usize, row: usize, out: &mut Vec<f32>) -> Result<(), String> {
        let target = &self.all[target];
        let missing = || format!("{}: row {row} has no weights", target.name);
        let holds = |&&(role, layer, first): &&(TensorRole, usize, usize)| {
            shape_of(self.weights, role, layer).is_some_and(|shape| (first..first + shape.rows).contains(&row))
        };
        let &(role, layer, first) = target.roles.iter().find(holds).ok_or_else(missing)?;
        let weight = self.weights.get(role, layer).ok_or_else(missing)?;
        let part = self.weights.part(weight, matrix, target.shape.count);
        let row_bytes = part.quant.row_bytes(part.cols);
        let bytes = self.weights.data(&part).get((row - first) * row_bytes..).and_then(|rest| rest.get(..row_bytes)).ok_or_else(missing)?;
        out.resize(part.cols, 0.0);
        (part.quant.dequantize)(bytes, out);
        let scales = self.weights.scales(weight);
        if let Some(scale) = scales.get(matrix).or(scales.first()) {
            out.iter_mut().for_each(|x| *x *= scale);
        }
        Ok(())
    }
}

fn shape_of(weights: &Weights, role: TensorRole, layer: usize) -> Option<Shape> {
    let dims = role.dims(&weights.spec, layer)?;
    let at = |index: usize| dims.get(index).copied().unwrap_or(1);
    Some(Shape { count: at(2), rows: at(1), cols: at(0) })
}
