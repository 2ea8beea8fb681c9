//! Reads well-formed files: every metadata type, accessors, split models, and files that are replaced while open.

use std::path::{Path, PathBuf};

use super::*;

fn written(dir: &Path, name: &str, file: &GgufBuilder) -> PathBuf {
    let path = dir.join(name);
    file.write(&path).unwrap();
    path
}

/// A file with a value of every metadata type.
fn sample() -> GgufBuilder {
    let nested = Array::Nested(vec![Array::U8(vec![1]), Array::Strings(vec!["x".into()]), Array::Nested(vec![])]);
    GgufBuilder::new()
        .kv("general.architecture", "llama")
        .kv("a.u8", 200u8)
        .kv("a.i8", -5i8)
        .kv("a.u16", 60_000u16)
        .kv("a.i16", -300i16)
        .kv("a.u32", 4_000_000_000u32)
        .kv("a.i32", -70_000i32)
        .kv("a.f32", 0.25f32)
        .kv("a.bool", true)
        .kv("a.string", "schön")
        .kv("a.u64", u64::MAX)
        .kv("a.i64", i64::MIN)
        .kv("a.f64", 1e300f64)
        .kv("b.u8", Array::U8(vec![1, 2]))
        .kv("b.i8", Array::I8(vec![-1]))
        .kv("b.u16", Array::U16(vec![1]))
        .kv("b.i16", Array::I16(vec![-1]))
        .kv("b.u32", vec![7u32])
        .kv("b.i32", vec![-7i32, 8])
        .kv("b.f32", vec![1.5f32])
        .kv("b.bool", Array::Bool(vec![true, false]))
        .kv("b.strings", vec!["a".to_owned(), String::new()])
        .kv("b.u64", Array::U64(vec![u64::MAX]))
        .kv("b.i64", Array::I64(vec![-1]))
        .kv("b.f64", Array::F64(vec![0.5]))
        .kv("b.empty", Vec::<String>::new())
        .kv("b.nested", nested)
        .tensor_f32("t.one", &[3], &[1.0, 2.0, 3.0])
        .tensor("t.two", &[32, 2], 8, (0..68).collect())
}

#[test]
fn everything_written_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    for (version, alignment) in [(2, 32), (3, 32), (3, 8), (3, 4096)] {
        let written_file = GgufBuilder { version, alignment, ..sample() };
        for backing in [Backing::Mapped, Backing::Private] {
            let file = GgufFile::open_with(&written(dir.path(), "sample.gguf", &written_file), backing).unwrap();
            assert_eq!(file.version(), version);
            let pairs: Vec<_> = file.metadata().filter(|(key, _)| *key != "general.alignment").collect();
            assert!(pairs.iter().copied().eq(written_file.metadata.iter().map(|(key, value)| (key.as_str(), value))));
            for tensor in &written_file.tensors {
                let read = file.tensor(&tensor.name).unwrap();
                assert_eq!((&read.dims, read.type_id, file.data(read)), (&tensor.dims, tensor.type_id, &tensor.bytes[..]));
                assert_eq!(read.offset % u64::from(alignment), 0);
            }
            assert_eq!(file.tensors().len(), 2);
        }
    }
}

#[test]
fn accessors_take_any_integer_that_fits() {
    let dir = tempfile::tempdir().unwrap();
    let file = GgufFile::open(&written(dir.path(), "sample.gguf", &sample())).unwrap();
    assert_eq!((file.get_u32("a.u8"), file.get_u32("a.u32")), (Some(200), Some(4_000_000_000)));
    assert_eq!((file.get_u32("a.i8"), file.get_u32("a.u64"), file.get_u32("a.f32"), file.get_u32("none")), (None, None, None, None));
    assert_eq!((file.get_f32("a.f32"), file.get_bool("a.bool"), file.get_str("a.string")), (Some(0.25), Some(true), Some("schön")));
    assert_eq!(file.get_strs("b.strings").unwrap(), ["a", ""]);
    assert_eq!((file.get("b.f32").unwrap().floats().unwrap().as_ref(), file.get_ints("b.i32").unwrap()), (&[1.5][..], vec![-7, 8]));
    assert_eq!((file.get_ints("b.u64"), file.get_ints("b.f32"), file.get_strs("b.u8")), (None, None, None));
    assert_eq!(file.architecture(), Some("llama"));
    assert_eq!(file.hidden_dim(), None);
    assert_eq!(file.get("b.nested").unwrap().as_array().unwrap().len(), 3);
    assert_eq!(file.get("b.i32").unwrap().as_array().unwrap().first(1), [Value::I32(-7)]);
}

/// Writes a model split into three parts. `edit` may make a part invalid.
fn parts(dir: &Path, edit: impl Fn(usize, &mut GgufBuilder)) -> Vec<PathBuf> {
    let part = |no: usize| {
        let mut file = GgufBuilder::new().kv("split.no", no as u16).kv("split.count", 3u16).kv("split.tensors.count", 3i32);
        if no == 0 {
            file.set("general.name", "split");
        }
        file = file.tensor_f32(&format!("t.{no}"), &[2], &[no as f32, 0.5]);
        edit(no, &mut file);
        written(dir, &format!("m-{:05}-of-00003.gguf", no + 1), &file)
    };
    (0..3).map(part).collect()
}

#[test]
fn any_part_opens_the_whole_model() {
    let dir = tempfile::tempdir().unwrap();
    for path in parts(dir.path(), |_, _| {}) {
        let file = GgufFile::open(&path).unwrap();
        assert_eq!((file.path(), file.name(), file.tensors().len(), file.paths().count()), (path.as_path(), Some("split"), 3, 3));
        for no in 0..3 {
            let tensor = file.tensor(&format!("t.{no}")).unwrap();
            assert_eq!((tensor.shard, &file.data(tensor)[..4]), (no, &(no as f32).to_le_bytes()[..]));
        }
    }
}

#[test]
fn invalid_split_models_are_refused_with_the_reason() {
    type Edit = fn(usize, &mut GgufBuilder);
    let rows: [(Edit, &str); 6] = [
        (
            |no, file| {
                if no == 1 {
                    file.set("split.no", 2u16)
                }
            },
            "split.no is 2, expected 1 for part 2 of 3",
        ),
        (
            |no, file| {
                if no == 2 {
                    file.remove("split.no")
                }
            },
            "split.no is missing",
        ),
        (
            |no, file| {
                if no == 2 {
                    file.set("split.count", 4u16)
                }
            },
            "split.count is 4, expected 3",
        ),
        (|_, file| file.set("split.count", 65_535u16), "split.count is 65535, but the file name says 3 parts"),
        (|_, file| file.set("split.tensors.count", 4i32), "split.tensors.count is 4, but the parts hold 3 tensors"),
        (|_, file| file.tensors[0].name = "same".into(), "tensor \"same\" is already in part 1"),
    ];
    for (edit, expected) in rows {
        let dir = tempfile::tempdir().unwrap();
        let error = GgufFile::open(&parts(dir.path(), edit)[0]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let paths = parts(dir.path(), |_, _| {});
    let error = GgufFile::open(&written(dir.path(), "m.gguf", &sample().kv("split.count", 3u16))).unwrap_err().to_string();
    assert!(error.contains("the file name is not of the form NAME-0000i-of-0000N.gguf"), "{error}");
    std::fs::remove_file(&paths[1]).unwrap();
    let error = GgufFile::open(&paths[2]).unwrap_err().to_string();
    assert!(error.contains("m-00002-of-00003.gguf") && error.contains("cannot open"), "{error}");
}

#[test]
fn a_whole_file_opens_under_any_name() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["x-00001-of-00003.gguf", "x-00003-of-00003.gguf", "x-00001-of-00001.gguf", "x.gguf"] {
        // Programs that join the parts of a model leave a count of 0.
        for count in [None, Some(0u16), Some(1)] {
            let file = count.into_iter().fold(sample(), |file, count| file.kv("split.count", count).kv("split.no", 0u16));
            let file = GgufFile::open(&written(dir.path(), name, &file)).unwrap_or_else(|error| panic!("{name} {count:?}: {error}"));
            assert_eq!((file.tensors().len(), file.paths().count()), (2, 1), "{name} {count:?}");
        }
    }
}

#[test]
fn an_open_file_survives_being_renamed_over_or_unlinked() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path(), "m.gguf", &sample());
    let file = GgufFile::open(&path).unwrap();
    let small = written(dir.path(), "new", &GgufBuilder::new().kv("general.name", "new"));
    std::fs::rename(small, &path).unwrap();
    assert_eq!(file.data(file.tensor("t.two").unwrap()), &sample().tensors[1].bytes[..]);
    file.verify_unchanged().unwrap();
    assert_eq!(GgufFile::open(&path).unwrap().name(), Some("new"));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(file.data(file.tensor("t.two").unwrap()), &sample().tensors[1].bytes[..]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files: a copy is not cut")]
fn truncation_in_place_is_detected_in_a_map_and_does_not_affect_a_private_copy() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path(), "m.gguf", &sample());
    let (mapped, private) = (GgufFile::open(&path).unwrap(), GgufFile::open_with(&path, Backing::Private).unwrap());
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(10).unwrap();
    let error = mapped.verify_unchanged().unwrap_err().to_string();
    assert!(error.contains("has 10 now"), "{error}");
    private.verify_unchanged().unwrap();
    assert_eq!(private.data(private.tensor("t.two").unwrap()), &sample().tensors[1].bytes[..]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files: a copy loses no bytes")]
fn bytes_that_are_gone_read_as_zeros_and_mark_their_file_alone() {
    let dir = tempfile::tempdir().unwrap();
    let large = GgufBuilder::new().tensor("t", &[100_000], 24, vec![7; 100_000]);
    for round in 0..3 {
        // Earlier files were closed, so their entries in the list of watched ranges are reused.
        let paths: Vec<PathBuf> = (0..20).map(|i| written(dir.path(), &format!("{i}.gguf"), &large)).collect();
        let files: Vec<GgufFile> = paths.iter().map(|path| GgufFile::open(path).unwrap()).collect();
        for (path, file) in paths.iter().zip(&files).skip(round).step_by(3) {
            std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(50_000).unwrap();
            let data = file.data(file.tensor("t").unwrap());
            assert!(!file.is_damaged(), "nothing was read yet");
            // Several threads touch the missing pages at once.
            let sum = || data.iter().map(|&byte| usize::from(byte)).sum::<usize>();
            let sums: Vec<usize> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(sum)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(sums.iter().all(|&sum| (7 * 40_000..7 * 60_000).contains(&sum)), "what is left, then zeros: {sums:?}");
            assert!(file.is_damaged() && file.verify_unchanged().unwrap_err().to_string().contains("could not be read"));
        }
        for file in files.iter().enumerate().filter(|(i, _)| i % 3 != round).map(|(_, file)| file) {
            assert!(file.data(file.tensor("t").unwrap()).iter().all(|&byte| byte == 7) && !file.is_damaged());
            file.verify_unchanged().unwrap();
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri maps no files: a copy is not written over")]
fn a_file_that_is_written_over_in_place_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path(), "m.gguf", &sample());
    let (mapped, private) = (GgufFile::open(&path).unwrap(), GgufFile::open_with(&path, Backing::Private).unwrap());
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert!(mapped.verify_unchanged().unwrap_err().to_string().contains("was written to"));
    private.verify_unchanged().unwrap();
}

#[test]
fn directories_missing_files_and_empty_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(GgufFile::open(dir.path()).unwrap_err().to_string().contains("not a regular file"));
    assert!(GgufFile::open(&dir.path().join("none")).unwrap_err().to_string().contains("cannot open"));
    let empty = dir.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    for backing in [Backing::Mapped, Backing::Private] {
        assert!(GgufFile::open_with(&empty, backing).is_err());
    }
}
