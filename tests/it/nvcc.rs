//! Tests how the build script finds the CUDA compiler, and which kernels it compiles again.

use std::path::{Path, PathBuf};

#[path = "../../build/nvcc.rs"]
mod search;
#[path = "../../build/stamp.rs"]
mod stamps;
use search::{Places, code_flags, runtime_dir};
use stamps::{object_folder, stamp};

fn touch(root: &Path, name: &str) -> PathBuf {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "").unwrap();
    path
}

#[test]
fn the_first_place_with_a_compiler_wins() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let mut places = Places { root: root.join("project"), usual: root.join("usual"), ..Places::default() };
    places.path = Some(std::env::join_paths([root.join("empty"), root.join("path")]).unwrap());
    let error = places.find().unwrap_err();
    assert!(error.contains("pip install") && error.contains("CUDA_HOME") && error.contains("NVCC"), "{error}");
    // From the last place in the order to the first.
    for (name, set) in [
        ("usual/bin/nvcc", None),
        ("project/.venv/lib/python3.11/site-packages/nvidia/cu12/bin/nvcc", None),
        ("project/.venv/lib/python3.11/site-packages/nvidia/cu13/bin/nvcc", None),
        ("path/nvcc", None),
        ("home/bin/nvcc", Some("home")),
        ("own/nvcc-13", Some("nvcc")),
    ] {
        let file = touch(root, name);
        match set {
            Some("home") => places.home = Some(root.join("home").into()),
            Some(_) => places.nvcc = Some(file.clone().into()),
            None => {}
        }
        assert_eq!(places.find().unwrap(), file);
    }
    places.nvcc = Some(root.join("gone").into());
    assert!(places.find().unwrap_err().contains("gone"));
    (places.nvcc, places.home) = (None, Some(root.join("nowhere").into()));
    assert!(places.find().unwrap_err().contains("CUDA_HOME"));
}

#[test]
fn the_runtime_is_found_beside_the_compiler() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let compiler = touch(&root, "cuda/bin/nvcc");
    assert!(runtime_dir(&compiler).unwrap_err().contains("nvidia-cuda-runtime"));
    for lib in ["targets/x86_64-linux/lib", "lib64", "lib"] {
        touch(&root, &format!("cuda/{lib}/libcudart_static.a"));
        assert_eq!(runtime_dir(&compiler).unwrap(), root.join("cuda").join(lib));
    }
    // A link to the compiler also counts.
    std::os::unix::fs::symlink(&compiler, root.join("nvcc")).unwrap();
    assert_eq!(runtime_dir(&root.join("nvcc")).unwrap(), root.join("cuda/lib"));
}

#[test]
fn architectures_become_flags() {
    let flags = code_flags("80; 90a,90+ptx").unwrap();
    let want = ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90a,code=sm_90a", "-gencode=arch=compute_90,code=compute_90"];
    assert_eq!(flags, want);
    for wrong in ["", " ;", "sm_80", "8", "80+pt"] {
        assert!(code_flags(wrong).unwrap_err().contains("PENSTOCK_CUDA_ARCHS"), "{wrong}");
    }
}

#[test]
fn the_environment_names_the_places() {
    let places = |vars: &'static [(&str, &str)]| {
        let value = move |name: &str| vars.iter().find(|(var, _)| *var == name).map(|(_, value)| value.into());
        Places::from_env(Path::new("/project"), value)
    };
    let all = places(&[("NVCC", "/a/nvcc"), ("CUDA_HOME", "/home"), ("CUDA_PATH", "/path"), ("PATH", "/bin:/usr/bin")]);
    assert_eq!(all.nvcc.as_deref(), Some("/a/nvcc".as_ref()));
    assert_eq!(all.home.as_deref(), Some("/home".as_ref()));
    assert_eq!(all.path.as_deref(), Some("/bin:/usr/bin".as_ref()));
    assert_eq!((all.root, all.usual), ("/project".into(), "/usr/local/cuda".into()));
    // CUDA_PATH counts if CUDA_HOME is not set. An empty variable counts as not set.
    let empty = places(&[("NVCC", ""), ("CUDA_HOME", ""), ("CUDA_PATH", "/path")]);
    assert_eq!((empty.nvcc, empty.path), (None, None));
    assert_eq!(empty.home.as_deref(), Some("/path".as_ref()));
}

#[test]
fn a_kernel_is_compiled_again_if_what_it_includes_or_its_flags_change() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(touch(dir.path(), name), text).unwrap();
    write("op/kernel.cu", "#include <vector>\n#include \"near.cuh\"\n  # include \"shared.h\"\n");
    write("op/near.cuh", "#include \"../device/deep.cuh\"\n#include \"kernel.cu\"\n");
    write("device/deep.cuh", "int deep;\n");
    write("include/shared.h", "int shared;\n");
    write("op/other.cuh", "int other;\n");
    let of = |flags: &[&str]| {
        let flags: Vec<String> = flags.iter().map(|flag| flag.to_string()).collect();
        stamp(&dir.path().join("op/kernel.cu"), &dir.path().join("include"), &flags).unwrap()
    };
    let first = of(&["-O3"]);
    write("op/other.cuh", "int changed;\n");
    assert_eq!(of(&["-O3"]), first, "nothing that it includes has changed");
    assert_ne!(of(&["-O2"]), first);
    for (file, old) in [("device/deep.cuh", "int deep;\n"), ("include/shared.h", "int shared;\n"), ("op/near.cuh", "")] {
        let before = std::fs::read_to_string(dir.path().join(file)).unwrap();
        write(file, &format!("{before}// changed\n"));
        assert_ne!(of(&["-O3"]), first, "{file}");
        write(file, &before);
        assert!(before.contains(old) && of(&["-O3"]) == first, "{file}");
    }
    assert!(stamp(&dir.path().join("op/gone.cu"), dir.path(), &[]).unwrap_err().contains("gone.cu"));
}

#[test]
fn files_of_one_name_have_objects_of_their_own() {
    let of = |file: &str| object_folder(Path::new("/out"), Path::new("/p/cuda"), &Path::new("/p/cuda").join(file), 7);
    assert_eq!(of("linear/rows.cu"), Path::new("/out/kernels/linear-rows-0000000000000007"));
    assert_ne!(of("linear/rows.cu"), of("experts/rows.cu"));
}
