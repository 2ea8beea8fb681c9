//! What tiny models need of a device, which takes no part in these tests.

use super::*;
use gguf::GgufFile;
use model::testing::TinyModel;
use model::{ARCHS, QUANTS};

fn options() -> EngineOptions {
    EngineOptions { context: 100, max_slots: 4, max_batch_tokens: 64, ..EngineOptions::default() }
}

fn weights(model: &TinyModel) -> Weights {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    model.build().write(&path).unwrap();
    Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap()
}

#[test]
fn every_architecture_has_a_need() {
    for model in TinyModel::all() {
        let (arch, weights, options) = (model.arch, weights(&model), options());
        let need = Description::new(&weights, &options).unwrap().need().unwrap();
        // matrices are float16 on the device, in tiles of 16 rows × 64 columns; vectors are float32
        let elements: usize = items(&weights).iter().map(|item| item.weight.rows * item.weight.cols).sum();
        assert!(need.weights >= 2 * elements as u64, "{}: {} bytes for {elements} weights", arch.name, need.weights);
        assert!(need.weights <= 64 * 2 * elements as u64, "{}: {} bytes for {elements} weights", arch.name, need.weights);
        assert!(0 < need.step_weights && need.step_weights <= need.weights, "{}", arch.name);
        let spec = &weights.spec;
        let attention = spec.attention().unwrap();
        let floats = 2 * spec.num_layers() * attention.num_kv_heads * attention.head_dim;
        assert_eq!(need.kv_token, 2 * floats as u64, "{}", arch.name);
    }
}

#[test]
fn scratch_memory_grows_with_the_batch_and_the_slots() {
    let weights = weights(&TinyModel::new(&ARCHS[0]));
    let scratch = |change: &dyn Fn(&mut EngineOptions)| {
        let mut options = options();
        change(&mut options);
        Description::new(&weights, &options).unwrap().need().unwrap().scratch
    };
    let one = scratch(&|_| ());
    assert!(scratch(&|options| options.max_batch_tokens = 1 << 16) > one + (1 << 20));
    assert!(scratch(&|options| options.max_slots = 256) > one + (1 << 20));
    assert!(scratch(&|options| options.context = 1 << 20) > one + (1 << 20));
}

#[test]
fn quantised_weights_take_less_memory() {
    let need = |name| {
        let quant = QUANTS.iter().find(|quant| quant.name == name).unwrap();
        let model = TinyModel { quant, ..TinyModel::new(&ARCHS[0]) };
        Description::new(&weights(&model), &options()).unwrap().need().unwrap().weights
    };
    assert!(need("Q4_0") < need("Q8_0") && need("Q8_0") < need("F16"));
    assert_eq!(need("F16"), need("BF16"));
}

#[test]
fn a_required_tensor_that_is_not_listed_is_an_error() {
    let (weights, options) = (weights(&TinyModel::new(&ARCHS[0])), options());
    let mut description = Description::new(&weights, &options).unwrap();
    description.tensors.retain(|tensor| tensor.slot != TensorSlot::AttnQ as u32);
    let error = description.need().unwrap_err();
    assert!(matches!(&error, EngineError::Tensor(text) if text.contains("attention matrix")), "{error}");
}

#[test]
fn a_tensor_that_is_listed_twice_is_an_error() {
    let (weights, options) = (weights(&TinyModel::new(&ARCHS[0])), options());
    let mut description = Description::new(&weights, &options).unwrap();
    let again = sys::pen_tensor { slot: TensorSlot::AttnQ as u32, layer: 0, r#type: F32 };
    description.tensors.push(again);
    let error = description.need().unwrap_err().to_string();
    assert!(error.contains("listed twice"), "{error}");
}
