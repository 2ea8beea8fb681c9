//! Advice that makes the machine faster or removes obstacles to its use.

use super::machine::Machine;
use super::models::Fit;
use crate::cli::output::human_bytes;

/// The least free disk space that holds a model of a usual size [bytes].
const LITTLE_DISK: u64 = 5 << 30;

/// Lists advice, the most helpful first.
pub fn advice(machine: &Machine, models: &[Fit], threads: usize) -> Vec<String> {
    let mut all = Vec::new();
    gpus(machine, &mut all);
    processor(machine, threads, &mut all);
    for device in &machine.devices {
        if let (Some(free), Some(total)) = (device.free, device.total)
            && free < total / 5
        {
            let (free, total) = (human_bytes(free), human_bytes(total));
            all.push(format!("only {free} of {total} is free on {}: other programs hold the rest", device.name));
        }
    }
    if let Some(free) = machine.disk.free.filter(|free| *free < LITTLE_DISK) {
        let folder = &machine.disk.folder;
        all.push(format!("only {} is free for models in {folder}: PENSTOCK__SERVER__MODELS_DIR names another folder", human_bytes(free)));
    }
    if !models.iter().any(|model| model.on_disk) {
        let small = models.iter().filter(|model| model.fits == Some(true)).min_by_key(|model| model.size);
        all.extend(small.map(|model| format!("no model is on disk yet: `penstock pull {}` fetches a small one", model.id)));
    }
    all
}

fn gpus(machine: &Machine, all: &mut Vec<String>) {
    let nvidia = &machine.nvidia;
    match (machine.has_gpu(), machine.has_cuda_build(), nvidia.gpus > 0 || nvidia.driver.is_some()) {
        (true, ..) | (false, _, false) => {}
        (false, false, true) => all.push(
            "there is an NVIDIA GPU, but this build is without CUDA: `cargo build --release --features cuda` builds one with it, and \
             packages with `cuda` in their names contain one"
                .into(),
        ),
        (false, true, true) => {
            let why = nvidia.fault.as_deref().unwrap_or("the driver does not report it");
            all.push(format!("there is an NVIDIA GPU that cannot be used: {why}"));
        }
    }
}

fn processor(machine: &Machine, threads: usize, all: &mut Vec<String>) {
    let processor = &machine.processor;
    let count = processor.cores.unwrap_or(processor.threads).min(processor.threads);
    if cfg!(debug_assertions) {
        all.push("this is a build without optimisation: `cargo build --release` makes one that is many times faster".into());
    }
    match processor.kernels {
        "portable" => all.push("the processor has no AVX2, or this build has no kernels for it: models run several times slower".into()),
        "avx2" => all.push("the processor has no AVX-512 with VNNI, with which prompts are read about twice as fast".into()),
        _ => {}
    }
    if let Some(limit) = processor.limit.filter(|limit| *limit < count as f64) {
        all.push(format!("this container may use {limit:.1} of {count} processors: a higher limit makes models on the CPU faster"));
    }
    if threads > count {
        all.push(format!("engine.threads is {threads}, and there are {count} cores: more threads than cores are slower"));
    }
    if processor.governor.as_deref() == Some("powersave") {
        all.push("the processor saves power: `cpupower frequency-set -g performance` raises its clock rate".into());
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::{Device, Disk, Nvidia, Processor};
    use super::*;

    fn machine() -> Machine {
        Machine {
            processor: Processor { cores: Some(8), threads: 16, kernels: "avx512", ..Processor::default() },
            devices: vec![Device { backend: "cpu", name: "CPU".into(), free: Some(30 << 30), total: Some(32 << 30) }],
            nvidia: Nvidia::default(),
            backends: vec!["cpu"],
            disk: Disk { folder: "/models".into(), free: Some(100 << 30) },
        }
    }

    fn on_disk() -> Fit {
        Fit { id: "m".into(), on_disk: true, size: Some(1), needed: None, estimated: false, device: None, fits: Some(true), fault: None }
    }

    fn of(machine: &Machine, models: &[Fit], threads: usize) -> String {
        let debug = "this is a build without optimisation";
        let all = advice(machine, models, threads);
        all.into_iter().filter(|line| !line.starts_with(debug)).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_good_machine_needs_no_advice() {
        assert_eq!(of(&machine(), &[on_disk()], 0), "");
        let cuda = Machine { backends: vec!["cpu", "cuda"], ..machine() };
        assert_eq!(of(&cuda, &[on_disk()], 0), "", "the lack of a GPU gets no advice");
    }

    #[test]
    fn each_hindrance_is_named() {
        let gpu = |fault: Option<&str>| Nvidia { driver: Some("580".into()), gpus: 1, fault: fault.map(str::to_owned) };
        assert!(of(&Machine { nvidia: gpu(None), ..machine() }, &[on_disk()], 0).contains("`cargo build --release --features cuda`"));
        let cuda = Machine { nvidia: gpu(Some("the driver is too old")), backends: vec!["cpu", "cuda"], ..machine() };
        assert!(of(&cuda, &[on_disk()], 0).contains("cannot be used: the driver is too old"));
        let slow = Processor { kernels: "portable", limit: Some(1.5), governor: Some("powersave".into()), ..machine().processor };
        let slow = of(&Machine { processor: slow, ..machine() }, &[on_disk()], 32);
        for words in ["no AVX2", "1.5 of 8 processors", "engine.threads is 32", "saves power"] {
            assert!(slow.contains(words), "{slow}");
        }
        let full = Device { free: Some(1 << 30), ..machine().devices.remove(0) };
        assert!(of(&Machine { devices: vec![full], ..machine() }, &[on_disk()], 0).contains("only 1.0 GiB of 32.0 GiB"));
        let disk = Disk { folder: "/models".into(), free: Some(1 << 30) };
        let models = [Fit { on_disk: false, ..on_disk() }];
        let none = of(&Machine { disk, ..machine() }, &models, 0);
        assert!(none.contains("MODELS_DIR") && none.contains("`penstock pull m`"), "{none}");
    }
}
