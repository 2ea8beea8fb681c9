//! Malformed files are refused with the file's name, the byte and the fault. No input causes a panic or a large allocation.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

fn small() -> GgufBuilder {
    GgufBuilder::new()
        .kv("general.architecture", "llama")
        .kv("s", vec!["one".to_owned(), "two".to_owned()])
        .kv("n", Array::Nested(vec![Array::F32(vec![1.0]), Array::Bool(vec![true])]))
        .tensor_f32("t.one", &[3], &[1.0, 2.0, 3.0])
        .tensor("t.two", &[32, 2], 8, vec![1; 68])
}

fn open_bytes(bytes: &[u8]) -> Result<GgufFile, GgufError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.gguf");
    std::fs::write(&path, bytes).unwrap();
    GgufFile::open(&path)
}

/// Asserts that a file is refused for the expected reason.
fn refused(bytes: &[u8], expected: &str) -> GgufError {
    let error = open_bytes(bytes).err().unwrap_or_else(|| panic!("opened, expected: {expected}"));
    let text = error.to_string();
    assert!(text.contains(expected) && text.contains("bad.gguf: at byte "), "{text}\nexpected: {expected}");
    error
}

/// The bytes of `small()`, with those at offset `at` replaced.
fn patched(at: usize, with: &[u8]) -> Vec<u8> {
    let mut bytes = small().build();
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

/// Offset of `text` in `small()`. The text's length is in the 8 bytes before it.
fn find(text: &str) -> usize {
    let bytes = small().build();
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap()
}

/// A file with one metadata pair, whose value has the given bytes.
fn pair(type_id: u32, value: &[u8]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(3u64.to_le_bytes());
    bytes.extend(b"key");
    bytes.extend(type_id.to_le_bytes());
    bytes.extend(value);
    bytes
}

#[test]
fn a_wrong_magic_number_or_version_is_refused() {
    assert_eq!(refused(&patched(0, b"GGML"), "not a GGUF file").offset, 0);
    for version in [0u32, 1, 4, u32::MAX] {
        assert_eq!(refused(&patched(4, &version.to_le_bytes()), &format!("GGUF version {version} is not supported")).offset, 4);
    }
    refused(&patched(4, &3u32.to_be_bytes()), "big-endian");
}

#[test]
fn a_file_truncated_at_any_byte_is_refused() {
    let bytes = small().build();
    assert!(open_bytes(&bytes).is_ok());
    for len in (0..bytes.len()).step_by(if cfg!(miri) { 7 } else { 1 }) {
        refused(&bytes[..len], "the file is incomplete: fetch it again");
    }
    refused(&bytes[..bytes.len() - 1], "tensor \"t.two\": 68 bytes at");
}

#[test]
fn counts_that_cannot_fit_into_the_file_are_refused_at_once() {
    let bytes = patched(16, &(1u64 << 63).to_le_bytes());
    let duration = || {
        let start = Instant::now();
        assert!(super::parse::parse(&bytes, 0).is_err());
        start.elapsed()
    };
    // The best of five, because the machine may be busy.
    assert!((0..5).map(|_| duration()).min() < Some(Duration::from_millis(100)));
    for count in [1u64 << 63, u64::MAX, 1 << 32, 1000] {
        assert_eq!(refused(&patched(8, &count.to_le_bytes()), &format!("{count} tensors do not fit into")).offset, 8);
        assert_eq!(refused(&patched(16, &count.to_le_bytes()), &format!("{count} metadata pairs do not fit")).offset, 16);
    }
}

#[test]
fn strings_that_reach_past_the_end_or_are_not_utf_8_are_refused() {
    let at = find("general.architecture") - 8;
    for len in [1u64 << 63, u64::MAX, 100_000] {
        assert_eq!(refused(&patched(at, &len.to_le_bytes()), &format!("is {len} bytes long")).offset, at as u64);
    }
    let at = find("t.one") - 8;
    refused(&patched(at, &(1u64 << 63).to_le_bytes()), "the name of tensor 0 is 9223372036854775808 bytes long");
    refused(&patched(find("general.architecture") + 3, &[0xff]), "is not UTF-8");
}

#[test]
fn arrays_that_reach_past_the_end_or_nest_too_deeply_are_refused() {
    for type_id in 0..=12u32 {
        for len in [1u64 << 63, u64::MAX, u64::MAX / 8 + 2, 1 << 40] {
            let value = [&type_id.to_le_bytes()[..], &len.to_le_bytes()].concat();
            refused(&pair(9, &value), &format!("is an array of {len} elements"));
        }
    }
    let level = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    refused(&pair(9, &level.repeat(10_000)), "nests arrays deeper than 8");
}

#[test]
fn unknown_value_and_tensor_types_are_refused() {
    for type_id in [13u32, 255, u32::MAX, 1 << 31] {
        refused(&pair(type_id, &[0; 16]), &format!("unknown value type {type_id}"));
        refused(&pair(9, &[&type_id.to_le_bytes()[..], &[0; 16]].concat()), &format!("an array of unknown type {type_id}"));
    }
    let at = find("t.one") + 5 + 4 + 8;
    for type_id in [4u32, 5, 31, 42, u32::MAX, 1 << 31] {
        assert_eq!(refused(&patched(at, &type_id.to_le_bytes()), &format!("\"t.one\" has unknown type {type_id}")).offset, at as u64);
    }
    refused(&pair(7, &[2]), "holds 2 for a bool");
}

#[test]
fn duplicate_empty_and_overlong_names_are_refused() {
    let mut file = small();
    file.metadata.push(("s".to_owned(), 1u32.into()));
    refused(&file.build(), "key \"s\" occurs twice");
    refused(&small().kv("", 1u32).build(), "the key of metadata pair 3 has 0 bytes");
    refused(&small().kv(&"k".repeat(65_536), 1u32).build(), "the key of metadata pair 3 has 65536 bytes");
    refused(&small().tensor_f32("t.one", &[1], &[0.0]).build(), "tensor \"t.one\" occurs twice");
    refused(&small().tensor_f32("", &[1], &[0.0]).build(), "the name of tensor 2 has 0 bytes");
}

#[test]
fn invalid_alignments_are_refused() {
    for alignment in [0u32, 3, 4, 48, 1 << 31, u32::MAX] {
        refused(&small().kv("general.alignment", alignment).build(), &format!("general.alignment is {alignment}, expected a power of two"));
    }
    for value in [Value::U64(32), Value::I32(32), "32".into()] {
        refused(&small().kv("general.alignment", value).build(), "expected u32");
    }
}

#[test]
fn invalid_dimensions_are_refused() {
    refused(&small().tensor_f32("t", &[1; 5], &[0.0]).build(), "has 5 dimensions, expected 1 to 4");
    refused(&small().tensor_f32("t", &[], &[0.0]).build(), "has 0 dimensions");
    for dims in [&[0][..], &[4, 0], &[u64::MAX], &[2, u64::MAX, 2], &[1 << 63]] {
        refused(&small().tensor_f32("t", dims, &[0.0]).build(), "expected dimensions of 1 to 2^63 - 1");
    }
    for dims in [&[1 << 32, 1 << 32][..], &[1 << 62], &[1 << 31, 1 << 31, 1 << 31], &[1 << 16; 4]] {
        refused(&small().tensor_f32("t", dims, &[0.0]).build(), "overflows 64 bits");
    }
    refused(&small().tensor("t", &[33], 8, vec![0; 68]).build(), "has rows of 33 weights, expected a multiple of the Q8_0 block size 32");
}

#[test]
fn offsets_outside_the_file_unaligned_or_overlapping_are_refused() {
    let at = find("t.two") + 5 + 4 + 16 + 4;
    for (offset, expected) in [
        (u64::MAX - 31, "overflows 64 bits"),
        ((1 << 63) - 32, "reach past the end of the file"),
        (u64::MAX / 32 * 32 - 1024, "overflows 64 bits|reach past the end of the file"),
        (1 << 20, "reach past the end of the file"),
        (33, "offset 33 is not a multiple of the alignment 32"),
        (0, "overlaps tensor"),
    ] {
        let bytes = patched(at, &offset.to_le_bytes());
        let error = open_bytes(&bytes).unwrap_err().to_string();
        assert!(expected.split('|').any(|part| error.contains(part)), "{offset}: {error}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "reads a million strings and 50 MB of zeros, which takes Miri hours")]
fn long_lists_are_refused_before_memory_is_reserved_for_them() {
    let mut strings = [&8u32.to_le_bytes()[..], &1_000_000u64.to_le_bytes()].concat();
    strings.resize(strings.len() + 8 * 1_000_000, 0);
    let end = strings.len() - 8;
    strings[end..].copy_from_slice(&u64::MAX.to_le_bytes());
    refused(&pair(9, &strings), "is 18446744073709551615 bytes long, but 0 are left");
    for (type_id, len) in [(8u32, (1u64 << 22) + 1), (9, (1 << 16) + 1)] {
        let mut bytes = pair(9, &[&type_id.to_le_bytes()[..], &len.to_le_bytes()].concat());
        bytes.resize(bytes.len() + 12 * len as usize, 0);
        refused(&bytes, "the file's arrays hold more than 4194304 strings");
    }
    let mut bytes = small().build();
    bytes[8..16].copy_from_slice(&((1u64 << 18) + 1).to_le_bytes());
    bytes.resize(33 << 19, 0);
    refused(&bytes, "expected at most 262144 of each");
}

/// Miri is hundreds of times slower.
const CASES: u32 = if cfg!(miri) { 16 } else { 4000 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn files_with_random_changes_are_refused_or_hold_readable_tensors(
        edits in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![any::<u8>(), Just(0), Just(255), Just(9)]), 1..8),
    ) {
        let mut bytes = small().build();
        for (index, byte) in &edits {
            let at = index.index(bytes.len());
            bytes[at] = *byte;
        }
        if let Ok(parsed) = super::parse::parse(&bytes, 0) {
            for tensor in &parsed.tensors {
                prop_assert!(tensor.offset + tensor.nbytes <= bytes.len() as u64);
            }
        }
    }

    #[test]
    fn random_bytes_after_a_valid_head_do_not_panic(
        tail in prop::collection::vec(any::<u8>(), 0..400),
        pairs in 0u64..4,
        tensors in 0u64..4,
    ) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(pairs.to_le_bytes());
        bytes.extend(&tail);
        let _ = super::parse::parse(&bytes, 0);
    }

    #[test]
    fn exactly_the_names_of_parts_are_parsed_as_such(stem in "[a-z.-]{0,12}", no in 0usize..120, count in 0usize..120) {
        let path = PathBuf::from(format!("/m/{stem}-{no:05}-of-{count:05}.gguf"));
        match split::PartName::parse(&path) {
            Some(name) => {
                prop_assert!(no >= 1 && no <= count);
                prop_assert_eq!((name.no, name.count), (no, count));
                prop_assert_eq!(name.sibling(&path, no), path);
            }
            None => prop_assert!(no == 0 || no > count),
        }
    }
}
