//! Tests how the layers of known shapes are divided into cache groups.

use super::*;
use crate::arch::Arch;
use crate::spec::{LayerSpec, Mixer};
use crate::testing::TinyModel;

fn spec(name: &str, num_layers: usize, window: usize, context_length: usize) -> ModelSpec {
    let arch = Arch::by_name(name).unwrap();
    TinyModel { num_layers, sliding_window: Some(window), context_length, ..TinyModel::new(arch) }.spec()
}

/// The window and the number of layers of each group.
fn shape(spec: &ModelSpec) -> Vec<(Option<CacheWindow>, usize)> {
    let groups = spec.cache_groups();
    let mut layers: Vec<usize> = groups.iter().flat_map(|group| group.layers.clone()).collect();
    layers.sort_unstable();
    assert!(layers.into_iter().eq(spec.kept().into_iter().map(|layer| layer.0)), "each layer is in one group");
    groups.into_iter().map(|group| (group.window, group.layers.len())).collect()
}

const LOCAL: Option<CacheWindow> = Some(CacheWindow::Sliding(1024));

/// Copies the spec and changes the attention of each layer.
fn with(mut spec: ModelSpec, change: impl Fn(usize, &mut crate::Attention)) -> ModelSpec {
    for (i, LayerSpec { mixer, .. }) in spec.layers.iter_mut().enumerate() {
        if let Mixer::Attention(attention) = mixer {
            change(i, attention);
        }
    }
    spec
}

#[test]
fn global_layers_are_one_group_and_local_ones_several_of_its_size() {
    // Gemma 3 27B: every sixth of 62 layers is global
    let gemma = spec("gemma3", 62, 1024, 131_072);
    assert_eq!(shape(&gemma), [(None, 10), (LOCAL, 10), (LOCAL, 10), (LOCAL, 10), (LOCAL, 10), (LOCAL, 10), (LOCAL, 2)]);
    // every other layer
    let gemma = spec("gemma2", 26, 1024, 8192);
    assert_eq!(shape(&gemma), [(None, 13), (LOCAL, 13)]);
}

#[test]
fn layers_with_one_window_or_none_are_one_group() {
    let llama = Arch::by_name("llama").unwrap();
    assert_eq!(shape(&TinyModel { num_layers: 5, ..TinyModel::new(llama) }.spec()), [(None, 5)]);
    let all = with(spec("gemma3", 7, 1024, 8192), |_, attention| attention.window = Some(1024));
    assert_eq!(shape(&all), [(LOCAL, 7)]);
}

#[test]
fn a_model_without_attention_has_one_group_of_no_layers() {
    let mut none = spec("gemma3", 3, 1024, 8192);
    none.layers.iter_mut().for_each(|layer| layer.mixer = Mixer::None);
    assert_eq!(shape(&none), [(None, 0)]);
}

#[test]
fn layers_of_other_widths_share_blocks_of_as_many_bytes() {
    // a global layer is twice as wide as a local one
    let uneven = with(spec("gemma3", 12, 1024, 131_072), |i, attention| {
        if attention.window.is_none() {
            (attention.num_kv_heads, attention.head_dim, attention.value_dim) = (2, 128, 128);
        }
        assert_eq!(attention.window.is_none(), i % 6 == 5);
    });
    assert_eq!(shape(&uneven), [(None, 2), (LOCAL, 4), (LOCAL, 4), (LOCAL, 2)]);
}

#[test]
fn a_layer_that_others_read_has_the_loosest_of_their_windows() {
    let shared = |reader: usize, source: usize| {
        let spec = with(spec("gemma3", 12, 1024, 8192), |i, attention| attention.kv_of = (i == reader).then_some(source));
        spec.kept().into_iter().find(|layer| layer.0 == source).unwrap().1
    };
    assert_eq!(shared(7, 2), LOCAL, "a local layer reads a local one");
    assert_eq!(shared(11, 2), None, "a global layer reads a local one");
    assert_eq!(shared(7, 5), None);
}

#[test]
fn a_window_shows_what_its_kind_says() {
    let seen = |window: CacheWindow| [0, 3, 4, 7, 8].map(|position| window.first_seen(position));
    assert_eq!(seen(CacheWindow::Sliding(4)), [0, 0, 1, 4, 5]);
    assert_eq!(seen(CacheWindow::Chunked(4)), [0, 0, 4, 4, 8]);
    let chunked = spec("gemma3", 6, 64, 512);
    let chunked = ModelSpec { arch: Arch::by_name("llama4").unwrap(), ..chunked };
    assert_eq!(shape(&chunked)[1].0, Some(CacheWindow::Chunked(64)));
    let encoder = ModelSpec { arch: Arch::by_name("modern-bert").unwrap(), ..chunked };
    assert_eq!(shape(&encoder), [(None, 6)], "all rows run at once");
}
