//! The settings of a mmproj file: how its pictures are cut, resized and normalised.

use anyhow::Context;

use gguf::{GgufFile, Value};
use images::{Family, PictureSettings};
use model::VisionSpec;

/// Reads the settings: a family's defaults, with what the file says.
pub fn settings(file: &GgufFile, spec: &VisionSpec) -> anyhow::Result<PictureSettings> {
    let pinpoints = file.get_ints("clip.vision.image_grid_pinpoints").unwrap_or_default();
    let name = spec.family.name;
    let family = Family::of_projector(name, !pinpoints.is_empty()).with_context(|| format!("pictures of {name} cannot be cut"))?;
    let number = |suffix: &str| file.get(&format!("clip.vision.{suffix}")).and_then(Value::as_int).filter(|&n| n > 0);
    let narrow = |suffix: &str| number(suffix).and_then(|n| u32::try_from(n).ok());
    let of = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let mut settings = PictureSettings { patch_size: of(spec.patch_size), merge: of(spec.merge), ..PictureSettings::of(family) };
    settings.image_size = narrow("image_size").unwrap_or(settings.image_size);
    settings.longest_side = narrow("preproc_image_size").unwrap_or(settings.longest_side);
    settings.min_tiles = narrow("preproc_min_tiles").unwrap_or(settings.min_tiles);
    settings.max_tiles = narrow("preproc_max_tiles").unwrap_or(settings.max_tiles);
    settings = settings.with_default_bounds();
    settings.min_pixels = number("image_min_pixels").and_then(|n| u64::try_from(n).ok()).unwrap_or(settings.min_pixels);
    settings.max_pixels = number("image_max_pixels").and_then(|n| u64::try_from(n).ok()).unwrap_or(settings.max_pixels);
    if spec.num_queries > 0 {
        settings.query_rows = of(spec.num_queries);
    }
    if !pinpoints.is_empty() {
        let pairs = pinpoints.as_chunks::<2>().0.iter().map(|&[a, b]| Some((u32::try_from(a).ok()?, u32::try_from(b).ok()?)));
        settings.pinpoints = pairs.collect::<Option<_>>().context("clip.vision.image_grid_pinpoints: expected pairs of sizes")?;
    }
    (settings.mean, settings.std) = (spec.pixels.mean, spec.pixels.deviation);
    settings.check().map_err(|why| anyhow::anyhow!("clip.vision: {why}"))?;
    Ok(settings)
}
