//! Injects faults, to test what clients see (`tests/wire/test_faults.py`). Present only with the feature `faults`.
//!
//! The variable `PENSTOCK_FAULTS` names a file that a test writes. Its one line names a fault. The code that injects the fault first
//! removes the file, so each fault happens once.
//!
//! The variable `PENSTOCK_STEP_MILLIS` makes every step take at least this long [ms], for tests that need time to act between tokens.

use std::path::PathBuf;
use std::time::Duration;

use engine::{
    Adapter, Batch, CachePart, DeviceMemory, DraftRequest, Engine, EngineError, EngineInfo, KvCapacity, LoopLimits, Masks, PortableCache,
    Progress, Sampled, StepId, StepOutput,
};
use model::ModelSpec;

const VARIABLE: &str = "PENSTOCK_FAULTS";
const STEP_MILLIS: &str = "PENSTOCK_STEP_MILLIS";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InjectedFault {
    Panic,
    /// The step never ends.
    Hang,
    /// The device is lost.
    Lost,
    /// The first sampled row of the step has no finite logits.
    NotFinite,
    /// The engine has no memory for the step.
    NoMemory,
    /// The process ends at once, as after a memory fault.
    Abort,
    /// The step takes this long.
    Slow(Duration),
    /// The load takes this long.
    SlowLoad(Duration),
}

impl InjectedFault {
    fn of(line: &str) -> Option<Self> {
        let (name, millis) = line.trim().split_once(' ').unwrap_or((line.trim(), "0"));
        let time = Duration::from_millis(millis.parse().ok()?);
        Some(match name {
            "panic" => Self::Panic,
            "hang" => Self::Hang,
            "lost" => Self::Lost,
            "not_finite" => Self::NotFinite,
            "no_memory" => Self::NoMemory,
            "abort" => Self::Abort,
            "slow" => Self::Slow(time),
            "slow_load" => Self::SlowLoad(time),
            _ => return None,
        })
    }
}

struct FaultPlan {
    file: Option<PathBuf>,
    /// What every step takes at least.
    step: Duration,
}

impl FaultPlan {
    /// Reads the plan from the environment. Returns None if it has none.
    fn new() -> Option<Self> {
        let file = std::env::var_os(VARIABLE).map(PathBuf::from);
        let millis = std::env::var(STEP_MILLIS).ok();
        if file.is_none() && millis.is_none() {
            return None;
        }
        let millis = millis.map_or(0, |text| text.parse().expect("PENSTOCK_STEP_MILLIS is a number of milliseconds"));
        Some(Self { file, step: Duration::from_millis(millis) })
    }

    /// Takes the planned fault if `mine` accepts it. A fault happens once, even if the process restarts.
    fn take(&self, mine: impl Fn(InjectedFault) -> bool) -> Option<InjectedFault> {
        let file = self.file.as_ref()?;
        let fault = InjectedFault::of(&std::fs::read_to_string(file).ok()?).filter(|fault| mine(*fault))?;
        std::fs::remove_file(file).ok()?;
        Some(fault)
    }
}

/// An engine that injects the faults that a test plans.
struct FaultyEngine {
    inner: Box<dyn Engine>,
    plan: FaultPlan,
    /// Whether the next sampled row loses its token.
    spoils: bool,
}

/// Wraps an engine so that it follows the test's plan, if there is one. Injects a slow load here.
pub fn plan(engine: Box<dyn Engine>) -> Box<dyn Engine> {
    let Some(plan) = FaultPlan::new() else { return engine };
    if let Some(InjectedFault::SlowLoad(time)) = plan.take(|fault| matches!(fault, InjectedFault::SlowLoad(_))) {
        std::thread::sleep(time);
    }
    Box::new(FaultyEngine { inner: engine, plan, spoils: false })
}

impl Engine for FaultyEngine {
    fn spec(&self) -> &ModelSpec {
        self.inner.spec()
    }

    fn kv_capacity(&self) -> KvCapacity {
        self.inner.kv_capacity()
    }

    fn max_slots(&self) -> usize {
        self.inner.max_slots()
    }

    fn max_in_flight(&self) -> usize {
        self.inner.max_in_flight()
    }

    fn info(&self) -> EngineInfo {
        self.inner.info()
    }

    fn num_backed_blocks(&self) -> usize {
        self.inner.num_backed_blocks()
    }

    fn resize_cache(&mut self, num_blocks: usize) -> Result<usize, EngineError> {
        self.inner.resize_cache(num_blocks)
    }

    fn portable_cache(&self) -> Option<PortableCache> {
        self.inner.portable_cache()
    }

    fn export(&self, part: CachePart, out: &mut Vec<u8>) -> Result<(), EngineError> {
        self.inner.export(part, out)
    }

    fn import(&mut self, part: CachePart, bytes: &[u8]) -> Result<(), EngineError> {
        self.inner.import(part, bytes)
    }

    fn loop_limits(&self) -> Option<LoopLimits> {
        self.inner.loop_limits()
    }

    fn end_loops(&mut self) {
        self.inner.end_loops();
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    fn max_adapters(&self) -> usize {
        self.inner.max_adapters()
    }

    fn load_adapter(&mut self, place: u32, adapter: &Adapter) -> Result<(), EngineError> {
        self.inner.load_adapter(place, adapter)
    }

    fn unload_adapter(&mut self, place: u32) {
        self.inner.unload_adapter(place);
    }

    fn memory(&self) -> Option<DeviceMemory> {
        self.inner.memory()
    }

    fn progress(&self) -> Option<Progress> {
        self.inner.progress()
    }

    fn copy_bandwidth(&mut self) -> Option<f64> {
        self.inner.copy_bandwidth()
    }

    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError> {
        match self.plan.take(|fault| !matches!(fault, InjectedFault::SlowLoad(_))) {
            Some(InjectedFault::Panic) => panic!("a test asked for it"),
            Some(InjectedFault::Hang) => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
            Some(InjectedFault::Lost) => return Err(EngineError::Device("a test took the device away".into())),
            Some(InjectedFault::NoMemory) => return Err(EngineError::OutOfMemory("a test took the memory away".into())),
            Some(InjectedFault::Abort) => std::process::abort(),
            Some(InjectedFault::Slow(time)) => std::thread::sleep(time),
            Some(InjectedFault::NotFinite) => self.spoils = true,
            Some(InjectedFault::SlowLoad(_)) | None => {}
        }
        std::thread::sleep(self.plan.step);
        self.inner.submit(batch)
    }

    fn draft(&mut self, requests: &[DraftRequest]) -> Result<Vec<Vec<u32>>, EngineError> {
        self.inner.draft(requests)
    }

    fn sample(&mut self, step: StepId, masks: &Masks) -> Result<(), EngineError> {
        self.inner.sample(step, masks)
    }

    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError> {
        self.inner.collect(step, out)?;
        if let Some(first) = out.sampled.first_mut()
            && std::mem::take(&mut self.spoils)
        {
            *first = Sampled::NotFinite;
        }
        Ok(())
    }
}
