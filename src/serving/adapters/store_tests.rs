use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use ::adapters::AdapterKind;
use engine::{Adapter, Direction};
use gguf::{Backing, GgufFile};
use model::ARCHS;
use model::testing::TinyModel;

/// The memory of an adapter that the tests' opener reads [bytes].
const BYTES: u64 = 4096;

/// A folder with files of adapters, a model, and a store that counts what it opens.
struct Shelf {
    dir: tempfile::TempDir,
    base: Arc<BaseWeights>,
    store: Arc<AdapterStore>,
    opened: Arc<AtomicUsize>,
}

fn adapter() -> OpenAdapter {
    let directions = vec![Direction { layer: 1, vector: vec![0.0; BYTES as usize / 4] }];
    let adapter = Adapter { directions, ..Adapter::default() };
    OpenAdapter { adapter, kind: AdapterKind::ControlVector, rank: 0, invocation: Vec::new(), unused: Vec::new() }
}

impl Shelf {
    fn new(most: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        TinyModel::new(&ARCHS[0]).build().write(&path).unwrap();
        let weights = Weights::load(Arc::new(GgufFile::open_with(&path, Backing::Private).unwrap())).unwrap();
        let opened = Arc::new(AtomicUsize::new(0));
        let count = opened.clone();
        let open = move |path: &Path, _: &Weights| {
            count.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            match std::fs::read_to_string(path).unwrap_or_default().as_str() {
                "broken" => Err(AdapterError::new(path, format!("{}: blk.0.x has rank 0", path.display()))),
                "panic" => panic!("a fault of the reader"),
                _ => Ok(adapter()),
            }
        };
        let base = Arc::new(BaseWeights::Open(Box::new(weights)));
        Self { dir, base, store: AdapterStore::with_opener(most, Box::new(open)), opened }
    }

    fn choice(&self, name: &str) -> AdapterChoice {
        let path = self.dir.path().join(name);
        if !path.exists() {
            std::fs::write(&path, "good").unwrap();
        }
        AdapterChoice { name: name.into(), path, scale: 1.0 }
    }

    fn get(&self, name: &str) -> Result<Arc<[ActiveAdapter]>, AdapterFault> {
        self.store.get_blocking(&self.base, &[self.choice(name)], Instant::now() + Duration::from_millis(60))
    }

    fn is_in_memory(&self, name: &str) -> bool {
        lock(&self.store.state).entries.contains_key(&key(&self.base, &self.choice(name).path))
    }

    /// Makes the store look at every file again.
    fn age(&self) {
        for entry in lock(&self.store.state).entries.values_mut() {
            entry.looked = Instant::now().checked_sub(2 * FRESH).unwrap();
        }
    }

    fn num_opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }
}

#[test]
fn a_file_is_read_once_for_all_that_want_it_at_the_same_time() {
    let shelf = Shelf::new(1 << 20);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let choices = [shelf.choice("a")];
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (store, base, choices) = (shelf.store.clone(), shelf.base.clone(), choices.clone());
            runtime.spawn(async move { store.get(&base, &choices, Instant::now() + Duration::from_secs(9)).await })
        })
        .collect();
    let ids: Vec<u64> = tasks.into_iter().map(|task| runtime.block_on(task).unwrap().unwrap()[0].held.host.id).collect();
    assert!(ids.iter().all(|id| *id == ids[0]) && shelf.num_opened() == 1, "{ids:?}");
    assert!(shelf.store.ready(&shelf.base, &choices).is_some());
}

#[test]
fn the_least_recently_used_goes_and_none_in_use() {
    let shelf = Shelf::new(2 * BYTES);
    let a = shelf.get("a").unwrap();
    drop(shelf.get("b").unwrap());
    drop(shelf.get("c").unwrap());
    assert!(shelf.is_in_memory("a") && !shelf.is_in_memory("b") && shelf.is_in_memory("c"), "a is in use");
    drop(a);
    drop(shelf.get("c").unwrap());
    drop(shelf.get("d").unwrap());
    assert!(!shelf.is_in_memory("a") && shelf.is_in_memory("c") && shelf.is_in_memory("d"));
}

#[test]
fn adapters_wait_for_room_that_others_use() {
    let shelf = Shelf::new(BYTES);
    let a = shelf.get("a").unwrap();
    assert_eq!(shelf.get("b").unwrap_err(), AdapterFault::NoRoom(0));
    assert!(shelf.get("a").is_ok(), "the one in memory is there for others");
    drop(a);
    assert!(shelf.get("b").is_ok());
    let large = Shelf::new(BYTES / 2);
    assert!(large.get("a").is_ok(), "one that is larger than the bound is alone");
}

#[test]
fn a_changed_file_is_read_again_under_another_id() {
    let shelf = Shelf::new(1 << 20);
    let id = |shelf: &Shelf| shelf.get("a").unwrap()[0].held.host.id;
    let first = id(&shelf);
    shelf.age();
    assert!(shelf.store.ready(&shelf.base, &[shelf.choice("a")]).is_none());
    assert_eq!((id(&shelf), shelf.num_opened()), (first, 1), "a look is no read");
    std::fs::write(shelf.choice("a").path, "other").unwrap();
    shelf.age();
    assert!(id(&shelf) > first && shelf.num_opened() == 2);
    std::fs::remove_file(shelf.choice("a").path).unwrap();
    shelf.age();
    let choice = AdapterChoice { name: "a".into(), path: shelf.dir.path().join("a"), scale: 1.0 };
    let _ = std::fs::remove_file(&choice.path);
    let error = shelf.store.get_blocking(&shelf.base, &[choice], Instant::now()).unwrap_err();
    assert_eq!(error, AdapterFault::Unusable("the adapter `a` cannot be used: a: no such file".into()));
}

#[test]
fn a_failure_names_the_file_without_its_folder_and_is_forgotten() {
    let shelf = Shelf::new(1 << 20);
    for (content, words) in [("broken", "the adapter `a` cannot be used: a: a: blk.0.x has rank 0"), ("panic", "could not be read")] {
        std::fs::write(shelf.dir.path().join("a"), content).unwrap();
        let error = shelf.get("a").unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains(&*shelf.dir.path().to_string_lossy()), "{error}");
    }
    std::fs::write(shelf.dir.path().join("a"), "good").unwrap();
    assert!(shelf.get("a").is_ok());
}

#[test]
fn adapters_of_a_model_that_is_gone_are_dropped() {
    let mut shelf = Shelf::new(1 << 20);
    drop(shelf.get("a").unwrap());
    shelf.base = Shelf::new(1).base;
    shelf.store.sweep();
    assert!(lock(&shelf.store.state).entries.is_empty());
}
