//! Finds the devices that a model's replicas run on.

use anyhow::{Context, ensure};

use super::options::backend;
use config::{Config, ModelEntry};
use engine::{BackendKind, Device};
use scheduler::SharedDevice;
use serving::replica_index;

/// The devices of a model's replicas, which are alike.
pub struct ReplicaDevices {
    /// `None` stands for a device that was lost.
    all: Vec<Option<Box<dyn Device>>>,
}

impl ReplicaDevices {
    /// Finds the devices that the settings ask for: consecutive GPUs, or parts of the CPU. A device that this process has lost is left out,
    /// unless no other is left.
    ///
    /// # Errors
    /// There are too few devices, or they are not alike.
    pub fn find(config: &Config, entry: &ModelEntry) -> anyhow::Result<Self> {
        let (count, first) = (entry.replicas.unwrap_or(config.engine.replicas).max(1), config.engine.device);
        let chosen = backend(config.engine.backend);
        let is_left = |kind: BackendKind, number: usize| !SharedDevice::of(kind, replica_index(kind, first, number)).is_lost();
        // A lost GPU cannot even be asked what it is.
        let to_ask = (0..count).find(|number| is_left(BackendKind::Cuda, *number)).unwrap_or(0);
        let device = engine::find_device(chosen, replica_index(BackendKind::Cuda, first, to_ask))?;
        if count == 1 {
            return Ok(Self { all: vec![Some(device)] });
        }
        let kind = device.place().0;
        if kind != BackendKind::Cpu {
            check_count(count, first, engine::num_devices(kind)?)?;
        }
        let is_any_left = (0..count).any(|number| is_left(kind, number));
        let find = |number| match kind {
            _ if is_any_left && !is_left(kind, number) => Ok(None),
            BackendKind::Cpu => engine::device(kind, first).map(Some),
            BackendKind::Cuda => engine::device(kind, replica_index(kind, first, number)).map(Some),
        };
        let all: Vec<Option<Box<dyn Device>>> = (0..count).map(find).collect::<Result<_, _>>()?;
        let names = all.iter().flatten().map(|device| Ok(device.describe()?.name)).collect::<anyhow::Result<Vec<_>>>()?;
        check_alike(&names)?;
        Ok(Self { all })
    }

    /// Those that are not lost.
    pub fn left(&self) -> impl Iterator<Item = &dyn Device> {
        self.all.iter().flatten().map(|device| &**device)
    }

    /// The first one that is not lost.
    ///
    /// # Errors
    /// All are lost.
    pub fn first(&self) -> anyhow::Result<&dyn Device> {
        self.left().next().context("no device is left")
    }

    /// The number of replicas on the device of the first one: all of them on the CPU.
    pub fn num_per_device(&self) -> usize {
        let on_cpu = self.left().next().is_some_and(|device| device.place().0 == BackendKind::Cpu);
        if on_cpu { self.left().count() } else { 1 }
    }

    /// A device for each place where memory is needed: one for all replicas on the CPU.
    pub fn places(&self) -> impl Iterator<Item = &dyn Device> {
        self.left().step_by(self.num_per_device())
    }

    /// The number of replicas, lost ones included.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    pub fn into_all(self) -> Vec<Option<Box<dyn Device>>> {
        self.all
    }
}

/// `first`: index of the first GPU. `found`: number of GPUs.
fn check_count(count: usize, first: u32, found: u32) -> anyhow::Result<()> {
    let left = found.saturating_sub(first);
    ensure!(
        count <= left as usize,
        "engine.replicas (--replicas) is {count}, and there are {left} GPUs from engine.device {first} on: ask for at most {left} replicas"
    );
    Ok(())
}

/// Checks that GPUs with these names give the same bits, which may differ between kinds of GPUs.
fn check_alike(names: &[String]) -> anyhow::Result<()> {
    // "GPU 0 (NVIDIA H200)"
    let model = |name: &str| name.split_once('(').map_or(name, |(_, model)| model).to_owned();
    let odd = names.iter().find(|name| model(name) != model(&names[0]));
    if let Some(odd) = odd {
        anyhow::bail!(
            "engine.replicas (--replicas): {} and {odd} are of different kinds, so answers would depend on the replica: \
             set engine.device and engine.replicas so that all GPUs are alike, or serve from a process per kind",
            names[0]
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{ConfigSources, Overrides};

    #[test]
    fn too_few_devices_and_different_ones_are_named() {
        let error = check_count(4, 1, 3).unwrap_err().to_string();
        assert!(error.contains("engine.replicas (--replicas) is 4, and there are 2 GPUs from engine.device 1 on"), "{error}");
        assert!(check_count(2, 1, 3).is_ok() && check_count(1, 3, 3).is_err());
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(check_alike(&names(&["GPU 0 (H200)", "GPU 1 (H200)"])).is_ok() && check_alike(&[]).is_ok());
        let error = check_alike(&names(&["GPU 0 (H200)", "GPU 1 (H200)", "GPU 2 (A100)"])).unwrap_err().to_string();
        assert!(error.contains("GPU 0 (H200) and GPU 2 (A100)"), "{error}");
    }

    #[test]
    fn replicas_on_the_cpu_are_parts_of_one_device() {
        let env = vec![("HOME".into(), "/home/u".into())];
        let mut config = Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap();
        config.engine.backend = config::Backend::Cpu;
        let mut entry = ModelEntry::new("m", config::Source::File { path: "m.gguf".into() });
        let counts = |config: &Config, entry: &ModelEntry| {
            let devices = ReplicaDevices::find(config, entry).unwrap();
            (devices.count(), devices.num_per_device(), devices.places().count())
        };
        assert_eq!(counts(&config, &entry), (1, 1, 1));
        config.engine.replicas = 3;
        assert_eq!(counts(&config, &entry), (3, 3, 1));
        entry.replicas = Some(2);
        assert_eq!(counts(&config, &entry), (2, 2, 1), "the entry replaces the setting");
    }
}
