//! Finds the CUDA compiler. Shared by the build script and its test.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Places where the compiler may be.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// `NVCC`: the compiler itself.
    pub nvcc: Option<OsString>,
    /// `CUDA_HOME` or `CUDA_PATH`, in this order: a directory with `bin/nvcc`.
    pub home: Option<OsString>,
    /// `PATH`.
    pub path: Option<OsString>,
    /// The project, whose `.venv` may hold a compiler that pip installed.
    pub root: PathBuf,
    /// `/usr/local/cuda`.
    pub usual: PathBuf,
}

impl Places {
    /// Reads the places from the environment. `var` returns the value of a variable. An empty value counts as not set.
    pub fn from_env(root: &Path, var: impl Fn(&str) -> Option<OsString>) -> Self {
        let var = |name| var(name).filter(|value| !value.is_empty());
        let (home, usual) = (var("CUDA_HOME").or_else(|| var("CUDA_PATH")), PathBuf::from("/usr/local/cuda"));
        Self { nvcc: var("NVCC"), home, path: var("PATH"), root: root.to_owned(), usual }
    }

    /// Returns the first compiler of `NVCC`, `CUDA_HOME`, `PATH`, `.venv` and `/usr/local/cuda`.
    ///
    /// # Errors
    /// If none of these has a compiler, or if `NVCC` or `CUDA_HOME` is set and has none.
    pub fn find(&self) -> Result<PathBuf, String> {
        if let Some(nvcc) = &self.nvcc {
            let nvcc = PathBuf::from(nvcc);
            return if nvcc.is_file() { Ok(nvcc) } else { Err(format!("NVCC is {}, which is not a file", nvcc.display())) };
        }
        if let Some(home) = &self.home {
            let nvcc = Path::new(home).join("bin/nvcc");
            return if nvcc.is_file() {
                Ok(nvcc)
            } else {
                Err(format!("CUDA_HOME is {}, which has no bin/nvcc", Path::new(home).display()))
            };
        }
        let on_path = self.path.iter().flat_map(std::env::split_paths).map(|dir| dir.join("nvcc"));
        let installed = wheels(&self.root.join(".venv")).into_iter().map(|dir| dir.join("bin/nvcc"));
        let usual = std::iter::once(self.usual.join("bin/nvcc"));
        on_path.chain(installed).chain(usual).find(|nvcc| nvcc.is_file()).ok_or_else(|| {
            "no CUDA compiler was found. Install the CUDA toolkit (12.4 or later) and put nvcc on PATH or set CUDA_HOME or NVCC, or \
             install it with pip into .venv: python3 -m venv .venv && .venv/bin/pip install 'nvidia-cuda-nvcc==13.0.*' \
             'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-cccl==13.0.*'"
                .into()
        })
    }
}

/// The directories in which pip puts CUDA in a virtual environment, the latest version first.
fn wheels(venv: &Path) -> Vec<PathBuf> {
    let entries = |dir: PathBuf| {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        paths.sort();
        paths.reverse();
        paths
    };
    let starts = |path: &Path, with: &str| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(with));
    let pythons = entries(venv.join("lib")).into_iter().filter(|path| starts(path, "python"));
    pythons.flat_map(|python| entries(python.join("site-packages/nvidia"))).filter(|path| starts(path, "cu")).collect()
}

/// The directory of the runtime's static library, next to the compiler.
pub fn runtime_dir(nvcc: &Path) -> Result<PathBuf, String> {
    let real = nvcc.canonicalize().map_err(|error| format!("{}: {error}", nvcc.display()))?;
    let home = real.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let dirs = ["lib", "lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"].map(|dir| home.join(dir));
    let found = dirs.into_iter().find(|dir| dir.join("libcudart_static.a").is_file());
    found.ok_or_else(|| {
        let home = home.display();
        format!(
            "no libcudart_static.a was found in lib, lib64 or targets/*/lib of {home}: install the CUDA runtime (pip: nvidia-cuda-runtime)"
        )
    })
}

/// The compiler's flags for a list such as `80;86;90a;90+ptx`. A number requests machine code for that architecture. `+ptx` requests the
/// portable form, which later architectures compile when the program starts.
pub fn code_flags(archs: &str) -> Result<Vec<String>, String> {
    let mut flags = Vec::new();
    for arch in archs.split([';', ',', ' ']).filter(|arch| !arch.is_empty()) {
        let (number, kind) = arch.strip_suffix("+ptx").map_or((arch, "sm"), |number| (number, "compute"));
        let digits = number.strip_suffix(['a', 'f']).unwrap_or(number);
        if digits.len() < 2 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!("PENSTOCK_CUDA_ARCHS: `{arch}` is not an architecture: expected something like 86, 90a or 90+ptx"));
        }
        flags.push(format!("-gencode=arch=compute_{number},code={kind}_{number}"));
    }
    if flags.is_empty() { Err("PENSTOCK_CUDA_ARCHS names no architecture".into()) } else { Ok(flags) }
}
