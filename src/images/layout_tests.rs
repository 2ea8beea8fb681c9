//! Plans against the reference data: llama.cpp made to follow the models' reference (`families.json`), and the image processors of
//! `transformers` with Pillow (`layouts.jsonl.gz`).

use proptest::prelude::*;
use serde_json::Value;

use crate::test_picture::picture;
use crate::{Cutting, Family, LayoutError, PicturePlan, PictureSettings, PlanChunk};

/// What one chunk is: text, or a tile's rows, width, height and CRC-32.
#[derive(Debug, PartialEq)]
enum Chunk {
    Text(String),
    Tile { rows: usize, width: u32, height: u32, crc: String },
}

/// Settings as the keys of a file say.
fn settings(keys: &Value) -> PictureSettings {
    let number = |key: &str| keys[format!("clip.vision.{key}")].as_u64();
    let projector = keys["clip.projector_type"].as_str().or(keys["clip.vision.projector_type"].as_str()).expect("a projector");
    let pinpoints = keys["clip.vision.image_grid_pinpoints"].as_array();
    let family = Family::of_projector(projector, pinpoints.is_some()).expect("a family");
    let mut settings = PictureSettings::of(family);
    let of = |field: &mut u32, key: &str| *field = number(key).map_or(*field, |value| value as u32);
    of(&mut settings.image_size, "image_size");
    of(&mut settings.patch_size, "patch_size");
    of(&mut settings.merge, "projector.scale_factor");
    of(&mut settings.merge, "spatial_merge_size");
    of(&mut settings.longest_side, "preproc_image_size");
    of(&mut settings.min_tiles, "preproc_min_tiles");
    of(&mut settings.max_tiles, "preproc_max_tiles");
    settings.query_rows = keys["clip.minicpmv_query_num"].as_u64().map_or(settings.query_rows, |rows| rows as u32);
    if let Some(sides) = pinpoints {
        let side = |value: &Value| value.as_u64().expect("a side") as u32;
        settings.pinpoints = sides.chunks(2).map(|pair| (side(&pair[1]), side(&pair[0]))).collect();
    }
    settings = settings.with_default_bounds();
    settings.max_pixels = number("image_max_pixels").unwrap_or(settings.max_pixels);
    settings
}

/// The chunks of a prompt in which `<__media__>` stands for a picture.
fn chunks(settings: &PictureSettings, prompt: &str, pictures: &[(u32, u32)]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut text = String::new();
    for (i, part) in prompt.split("<__media__>").enumerate() {
        if let Some(i) = i.checked_sub(1) {
            let (width, height) = pictures[i];
            let plan = settings.plan(width, height, i).expect("a plan");
            add(&plan, &picture(width, height), &mut text, &mut chunks);
        }
        text.push_str(part);
    }
    chunks.extend((!text.is_empty()).then_some(Chunk::Text(text)));
    chunks
}

/// Adds a plan's chunks. Rows that are picked from several tiles count as those of the first.
fn add(plan: &PicturePlan, picture: &crate::Rgb, text: &mut String, chunks: &mut Vec<Chunk>) {
    let tiles = plan.prepare(picture);
    for chunk in &plan.chunks {
        match chunk {
            PlanChunk::Text(more) => text.push_str(more),
            PlanChunk::Rows(rows) => {
                if !text.is_empty() {
                    chunks.push(Chunk::Text(std::mem::take(text)));
                }
                let tile = &tiles[rows.tiles.start];
                let crc = format!("{:08x}", tile.crc32());
                chunks.push(Chunk::Tile { rows: rows.num_rows, width: tile.width, height: tile.height, crc });
            }
        }
    }
}

fn expected(chunk: &Value) -> Chunk {
    match chunk {
        Value::String(text) => Chunk::Text(text.clone()),
        _ => Chunk::Tile {
            rows: chunk[0].as_u64().expect("rows") as usize,
            width: chunk[1].as_u64().expect("a width") as u32,
            height: chunk[2].as_u64().expect("a height") as u32,
            crc: chunk[3].as_str().expect("a CRC").to_owned(),
        },
    }
}

fn sizes(value: &Value) -> Vec<(u32, u32)> {
    let side = |value: &Value| value.as_u64().expect("a side") as u32;
    value.as_array().expect("sizes").iter().map(|size| (side(&size[0]), side(&size[1]))).collect()
}

#[test]
fn prompts_of_all_families_become_the_reference_chunks() {
    let families: Value = serde_json::from_str(&fixtures::golden_text("images/families.json")).expect("JSON");
    let mut wrong = Vec::new();
    for family in families.as_array().expect("families") {
        let name = family["family"].as_str().expect("a name");
        let vocabulary: Vec<&str> = family["specials"].as_array().expect("tokens").iter().filter_map(Value::as_str).collect();
        let mut settings = settings(&family["keys"]).with_vocabulary(|token| vocabulary.contains(&token));
        // The data of these three has llama.cpp's tiles.
        if ["llava16", "minicpmv", "llama4"].contains(&name) {
            settings.cutting = Cutting::LlamaCpp;
        }
        settings.check().expect("settings that fit");
        for case in family["cases"].as_array().expect("cases") {
            let prompt = case["prompt"].as_str().expect("a prompt");
            let found = chunks(&settings, prompt, &sizes(&case["pictures"]));
            let expected: Vec<Chunk> = case["chunks"].as_array().expect("chunks").iter().map(expected).collect();
            if found != expected {
                wrong.push(format!("{name}, {prompt}, {}:\n  found {found:?}\n  expected {expected:?}", case["pictures"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn tiles_equal_those_of_the_models_own_image_processors() {
    let mut wrong = Vec::new();
    let lines = fixtures::packed_text("images/layouts.jsonl.gz");
    for line in lines.lines() {
        let case: Value = serde_json::from_str(line).expect("JSON");
        let settings = settings(&case["keys"]);
        settings.check().expect("settings that fit");
        let (width, height) = sizes(&Value::Array(vec![case["size"].clone()]))[0];
        let plan = settings.plan(width, height, 3).expect("a plan");
        let tiles = plan.prepare(&picture(width, height));
        let tiles: Vec<Value> =
            tiles.iter().map(|tile| serde_json::json!([tile.width, tile.height, format!("{:08x}", tile.crc32())])).collect();
        let mut text = String::new();
        for chunk in &plan.chunks {
            text.push_str(if let PlanChunk::Text(text) = chunk { text } else { "@" });
        }
        let is_text = case["text"].as_str().is_none_or(|expected| expected == text);
        let is_rows = case["rows"].as_u64().is_none_or(|rows| rows == plan.num_rows() as u64);
        if case["tiles"] != Value::Array(tiles.clone()) || !is_text || !is_rows {
            wrong.push(format!("{line}\n  found {} {text} {} rows", Value::Array(tiles), plan.num_rows()));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), lines.lines().count(), wrong.join("\n"));
}

#[test]
fn a_sliver_is_refused_by_every_family() {
    for family in Family::ALL {
        let refused = PictureSettings::of(family).plan(2001, 10, 0);
        assert_eq!(refused, Err(LayoutError::TooNarrow { width: 2001, height: 10 }), "{family:?}");
        assert_eq!(PictureSettings::of(family).plan(0, 10, 0), Err(LayoutError::Empty));
    }
}

#[test]
fn defaults_fit_each_other() {
    for family in Family::ALL {
        assert_eq!(PictureSettings::of(family).check(), Ok(()), "{family:?}");
    }
}

#[test]
fn sources_differ_by_pixels_settings_and_chunk() {
    let settings = PictureSettings::of(Family::Gemma3);
    let other = PictureSettings { image_size: 448, ..settings.clone() };
    let (one, two) = (picture(40, 30), picture(30, 40));
    let id = settings.picture_id(&one);
    assert_eq!(id, settings.picture_id(&one.clone()));
    assert_ne!(id, settings.picture_id(&two));
    assert_ne!(id, other.picture_id(&one));
    // the same bytes in another shape
    assert_ne!(id, settings.picture_id(&crate::Rgb { width: 30, height: 40, pixels: one.pixels.clone() }));
    assert_ne!(crate::chunk_source(&id, 0), crate::chunk_source(&id, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn plans_of_any_size_are_bounded_and_exact(family in prop::sample::select(&Family::ALL), width in 1u32..3000, height in 1u32..3000) {
        let settings = PictureSettings::of(family);
        let Ok(plan) = settings.plan(width, height, 0) else { return Ok(()) };
        // 16,384 rows are what the largest of the models' own settings allow
        prop_assert!(plan.num_rows() > 0 && plan.num_rows() <= 16_384, "{} rows", plan.num_rows());
        let small = width * height < 200_000;
        let tiles = if small { plan.prepare(&crate::Rgb::filled(width, height, [9, 8, 7])) } else { Vec::new() };
        for (tile, made) in plan.tiles.iter().zip(&tiles) {
            prop_assert_eq!((tile.width, tile.height), (made.width, made.height));
            prop_assert_eq!(made.pixels.len(), 3 * (tile.width * tile.height) as usize);
        }
        prop_assert!(plan.tiles.iter().all(|tile| tile.width > 0 && tile.height > 0 && tile.rows > 0));
    }
}
