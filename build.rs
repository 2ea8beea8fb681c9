//! Compiles `cuda/` for the engine's crate if the feature `cuda` is on.

#[path = "build/nvcc.rs"]
mod nvcc;
#[path = "build/stamp.rs"]
mod stamp;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const DEFAULT_ARCHS: &str = "80;86;89;90a;90+ptx";
/// Flags that nvcc itself takes from the environment.
const FLAGS_OF_NVCC: [&str; 2] = ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"];

fn main() {
    println!("cargo::rerun-if-changed={}", root().join("build.rs").display());
    for name in ["nvcc.rs", "stamp.rs"] {
        println!("cargo::rerun-if-changed={}", root().join("build").join(name).display());
    }
    println!("cargo::rerun-if-env-changed=CLIPPY_ARGS");
    // Lints link nothing, and cargo runs the build script for them separately, so the kernels would be compiled twice.
    if !cfg!(feature = "cuda") || std::env::var_os("CLIPPY_ARGS").is_some() {
        return;
    }
    if let Err(error) = build_cuda() {
        println!("cargo::error={error}");
        std::process::exit(1);
    }
}

fn build_cuda() -> Result<(), String> {
    for name in ["NVCC", "CUDA_HOME", "CUDA_PATH", "PENSTOCK_CUDA_ARCHS"].into_iter().chain(FLAGS_OF_NVCC) {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let root = root();
    println!("cargo::rerun-if-changed={}", root.join("cuda").display());
    let nvcc = nvcc::Places::from_env(&root, |name| std::env::var_os(name)).find()?;
    let runtime = nvcc::runtime_dir(&nvcc)?;
    let archs = std::env::var("PENSTOCK_CUDA_ARCHS").ok().filter(|archs| !archs.trim().is_empty());
    let flags = nvcc::code_flags(archs.as_deref().unwrap_or(DEFAULT_ARCHS))?;
    let mut files = Vec::new();
    collect(&root.join("cuda"), &mut files)?;
    files.sort();
    let objects = compile(&files, &root, &nvcc, &flags)?;
    // cc names the archive and the C++ library to the linker. The libraries that these need must come after them.
    cc::Build::new().cpp(true).objects(objects).try_compile("penstock_cuda").map_err(|error| error.to_string())?;
    println!("cargo::rustc-link-search=native={}", runtime.display());
    println!("cargo::rustc-link-lib=static=cudart_static");
    for library in ["dl", "rt", "pthread"] {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    Ok(())
}

/// The project's root. This script belongs to the engine's crate in `src/engine`.
fn root() -> PathBuf {
    let engine = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    engine.ancestors().nth(2).expect("src/engine lies two levels below the root").to_path_buf()
}

/// Every `.cu` below `dir` except the bench programs, each of which has a `main`.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = std::fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "bench") {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "cu") {
            files.push(path);
        }
    }
    Ok(())
}

/// Compiles each file separately, as many at once as cargo allows. Keeps an object whose sources and flags have not changed.
fn compile(files: &[PathBuf], root: &Path, nvcc: &Path, flags: &[String]) -> Result<Vec<PathBuf>, String> {
    let threads = std::env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1usize).clamp(1, files.len().max(1));
    let folders = object_folders(files, root, nvcc, flags)?;
    let (next, outcome) = (AtomicUsize::new(0), Mutex::new((Vec::new(), Vec::new())));
    let work = || {
        while let Some((file, folder)) = folders.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = object_of(file, folder, root, nvcc, flags);
            let mut outcome = outcome.lock().expect("no thread panicked");
            match result {
                Ok(object) => outcome.0.push(object),
                Err(error) => outcome.1.push(format!("{}: {}", file.display(), error.replace('\n', " "))),
            }
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let (mut objects, errors) = outcome.into_inner().expect("no thread panicked");
    objects.sort();
    if errors.is_empty() { Ok(objects) } else { Err(errors.join("; ")) }
}

/// Pairs each file with the folder of its object, and removes the folders of objects that no file has any more.
fn object_folders<'a>(files: &'a [PathBuf], root: &Path, nvcc: &Path, flags: &[String]) -> Result<Vec<(&'a PathBuf, PathBuf)>, String> {
    let version = Command::new(nvcc).arg("--version").output().map_err(|error| format!("{}: {error}", nvcc.display()))?;
    let mut flags = flags.to_vec();
    flags.extend([nvcc.display().to_string(), String::from_utf8_lossy(&version.stdout).into_owned()]);
    flags.extend(FLAGS_OF_NVCC.map(|name| std::env::var(name).unwrap_or_default()));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let (cuda, include) = (root.join("cuda"), root.join("cuda/include"));
    let mut folders = Vec::new();
    for file in files {
        folders.push((file, stamp::object_folder(&out, &cuda, file, stamp::stamp(file, &include, &flags)?)));
    }
    for old in std::fs::read_dir(out.join("kernels")).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if !folders.iter().any(|(_, folder)| *folder == old) {
            // A folder that could not be removed only takes space.
            let _ = std::fs::remove_dir_all(old);
        }
    }
    Ok(folders)
}

/// Returns the object of `file`. Compiles the file if its object is not in `folder`.
fn object_of(file: &Path, folder: &Path, root: &Path, nvcc: &Path, flags: &[String]) -> Result<PathBuf, String> {
    let object = folder.join("kernel.o");
    if object.is_file() {
        return Ok(object);
    }
    let mut build = cc::Build::new();
    // cc's own flags are for gcc, and nvcc does not know all of them.
    build.cuda(true).cudart("none").compiler(nvcc).no_default_flags(true).warnings(false).cargo_metadata(false);
    build.include(root.join("cuda/include")).file(file).out_dir(folder);
    build.flag("-std=c++17").flag("-O3").flag("-Xcompiler=-fPIC");
    for flag in flags {
        build.flag(flag);
    }
    let objects = build.try_compile_intermediates().map_err(|error| error.to_string())?;
    // The object gets its final name only once it is complete.
    std::fs::rename(&objects[0], &object).map_err(|error| format!("{}: {error}", object.display()))?;
    Ok(object)
}
