//! The machine's hardware, as the system reports it.

use std::path::Path;

use serde::Serialize;

use crate::engine::cpu::simd::dispatch;
use crate::engine::{BACKENDS, BackendKind};

/// Instruction sets that the kernels use or could use.
const FEATURES: [&str; 15] = [
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_int8",
    "asimd",
    "asimddp",
];
/// NVIDIA's vendor id on the PCI bus, and the class of displays and accelerators.
const NVIDIA: &str = "0x10de";
const DISPLAYS: &str = "0x03";

#[derive(Debug, Serialize)]
pub struct Machine {
    pub processor: Processor,
    pub devices: Vec<Device>,
    pub nvidia: Nvidia,
    /// Backends of this build, the CPU first.
    pub backends: Vec<&'static str>,
    /// The disk that holds the models.
    pub disk: Disk,
}

#[derive(Debug, Default, Serialize)]
pub struct Processor {
    pub name: Option<String>,
    pub cores: Option<usize>,
    /// Processors that this process may use.
    pub threads: usize,
    /// The container's limit [processors].
    pub limit: Option<f64>,
    /// The processor's features, of those in [`FEATURES`].
    pub features: Vec<&'static str>,
    /// The kernels that engines on the CPU use here.
    pub kernels: &'static str,
    /// The system's governor of the clock rate.
    pub governor: Option<String>,
}

/// A device that this build can compute on.
#[derive(Debug, Serialize)]
pub struct Device {
    pub backend: &'static str,
    pub name: String,
    pub free: Option<u64>,
    pub total: Option<u64>,
}

#[derive(Debug, Default, Serialize)]
pub struct Nvidia {
    /// The driver's version. None if no driver is loaded.
    pub driver: Option<String>,
    /// Number of GPUs on the bus, whether this program can use them or not.
    pub gpus: usize,
    /// The reason why this build finds no GPU, if it could use one.
    pub fault: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub struct Disk {
    pub folder: String,
    pub free: Option<u64>,
}

impl Machine {
    /// `models`: the folder of models.
    pub fn of_process(models: &Path) -> Self {
        let (mut devices, mut fault) = (Vec::new(), None);
        for backend in BACKENDS.iter().rev() {
            match (backend.count)() {
                Ok(count) => devices.extend((0..count).filter_map(|index| described((backend.discover)(index).ok()?, backend.kind))),
                Err(error) => fault = Some(error.to_string()),
            }
        }
        let root = Path::new("/");
        let processor = Processor {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            kernels: dispatch::available()[0].name,
            ..Processor::of(root)
        };
        let backends = BACKENDS.iter().rev().map(|backend| backend.kind.name()).collect();
        Self { processor, devices, nvidia: Nvidia { fault, ..Nvidia::of(root) }, backends, disk: Disk::of(models) }
    }

    pub fn has_cuda_build(&self) -> bool {
        self.backends.contains(&BackendKind::Cuda.name())
    }

    pub fn has_gpu(&self) -> bool {
        self.devices.iter().any(|device| device.backend == BackendKind::Cuda.name())
    }
}

fn described(device: Box<dyn crate::engine::Device>, kind: BackendKind) -> Option<Device> {
    let info = device.describe().ok()?;
    let (free, total) = (info.memory.map(|memory| memory.free), info.memory.map(|memory| memory.total));
    Some(Device { backend: kind.name(), name: info.name, free, total })
}

/// Reads a file of the system, without surrounding white space. None if there is no such file.
fn read(root: &Path, path: &str) -> Option<String> {
    Some(std::fs::read_to_string(root.join(path)).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}

impl Processor {
    /// Reads the processor's properties from files below `root`.
    fn of(root: &Path) -> Self {
        let text = read(root, "proc/cpuinfo").unwrap_or_default();
        let field = |names: &[&str]| {
            let of_line = |line: &str| {
                let (key, value) = line.split_once(':')?;
                names.contains(&key.trim()).then(|| value.trim().to_owned())
            };
            text.lines().find_map(of_line)
        };
        let flags = field(&["flags", "Features"]).unwrap_or_default();
        let flags: Vec<&str> = flags.split_whitespace().collect();
        Self {
            name: field(&["model name", "Model", "Hardware"]),
            cores: cores(&text),
            limit: read(root, "sys/fs/cgroup/cpu.max").and_then(|text| limit(&text)),
            features: FEATURES.into_iter().filter(|name| flags.contains(name)).collect(),
            governor: read(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            ..Self::default()
        }
    }
}

/// Counts the distinct pairs of socket and core.
fn cores(cpuinfo: &str) -> Option<usize> {
    let mut cores = std::collections::HashSet::new();
    let mut socket = "";
    for line in cpuinfo.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        match key.trim() {
            "physical id" => socket = value.trim(),
            "core id" => drop(cores.insert((socket, value.trim()))),
            _ => {}
        }
    }
    Some(cores.len()).filter(|count| *count > 0)
}

/// Parses `cpu.max` of a control group: a quota of each period, both in microseconds, or `max`. Returns processors.
fn limit(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok().filter(|period| *period > 0.0)?)
}

impl Nvidia {
    fn of(root: &Path) -> Self {
        let version = read(root, "proc/driver/nvidia/version");
        let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
        let driver = version.map(|text| text.split_whitespace().find(is_version).unwrap_or("of an unknown version").to_owned());
        let on_bus = std::fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten().filter(|entry| {
            let of = |name: &str| read(&entry.path(), name).unwrap_or_default();
            of("vendor") == NVIDIA && of("class").starts_with(DISPLAYS)
        });
        Self { driver, gpus: on_bus.count(), fault: None }
    }
}

impl Disk {
    /// Measures the disk of a folder, which need not exist yet.
    fn of(folder: &Path) -> Self {
        let there = folder.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
        #[allow(clippy::useless_conversion, reason = "the field is narrower on other systems")]
        let free =
            nix::sys::statvfs::statvfs(there).ok().map(|stat| u64::from(stat.blocks_available()).saturating_mul(stat.fragment_size()));
        Self { folder: folder.display().to_string(), free }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn the_system_tells_what_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let cpu = |core: u32| {
            format!("model name\t: Some CPU @ 2.0GHz\nphysical id\t: 0\ncore id\t\t: {core}\nflags\t\t: fpu avx2 fma f16c avx512f\n\n")
        };
        write(root, "proc/cpuinfo", &[cpu(0), cpu(0), cpu(1), cpu(1)].concat());
        write(root, "sys/fs/cgroup/cpu.max", "150000 100000\n");
        write(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
        let processor = Processor::of(root);
        assert_eq!((processor.name.as_deref(), processor.cores), (Some("Some CPU @ 2.0GHz"), Some(2)));
        assert_eq!(processor.features, ["avx2", "fma", "f16c", "avx512f"]);
        assert_eq!((processor.limit, processor.governor.as_deref()), (Some(1.5), Some("powersave")));
        assert_eq!(limit("max 100000"), None);

        write(
            root,
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC 12\n",
        );
        for (name, vendor, class) in [("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x1002", "0x030000")] {
            write(root, &format!("sys/bus/pci/devices/{name}/vendor"), vendor);
            write(root, &format!("sys/bus/pci/devices/{name}/class"), class);
        }
        let nvidia = Nvidia::of(root);
        assert_eq!((nvidia.driver.as_deref(), nvidia.gpus), (Some("580.65.06"), 1));
    }

    #[test]
    fn nothing_is_known_of_a_system_that_tells_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let processor = Processor::of(dir.path());
        assert_eq!((processor.name, processor.cores, processor.limit), (None, None, None));
        assert_eq!(Nvidia::of(dir.path()).gpus, 0);
        let disk = Disk::of(&dir.path().join("a/b/c"));
        assert!(disk.free.is_some_and(|bytes| bytes > 0), "{disk:?}");
    }
}
