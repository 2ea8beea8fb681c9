use std::path::Path;

use super::*;
use crate::fake::{FakeEngine, fake_adapter};
use crate::items::Layout;
use crate::new_sequence::NewSequence;
use crate::random::Random;
use crate::testing::{Rig, options, run, sequence, until};
use crate::{AdapterRequest, Client, Items};
use engine::{CacheGroup, CacheWindow, KvCapacity};

const ROOT: [u8; 32] = [7; 32];
const ENOUGH: u64 = 1 << 30;

/// A scheduler whose cache has files in `folder`.
fn with_files(capacity: &KvCapacity, folder: &Path, root: [u8; 32]) -> Rig {
    let (engine, control) = FakeEngine::new(capacity.clone(), 8, 1);
    let mut rig = Rig::of(engine, control, options(64, 8));
    rig.scheduler.save_prefixes(SavedPrefixes { store: Store::of(folder, ENOUGH).unwrap(), root });
    rig
}

/// Runs sequences at once and ends the process, as it were. Returns the cached tokens of each.
fn session(capacity: &KvCapacity, folder: &Path, all: &[NewSequence]) -> Vec<u32> {
    let mut rig = with_files(capacity, folder, ROOT);
    let clients: Vec<usize> = all.iter().map(|new| rig.enqueue(new.clone())).collect();
    rig.finish();
    clients.iter().for_each(|&client| rig.assert_solo(client));
    rig.scheduler.finish_saving();
    clients.iter().map(|&client| rig.clients[client].seen.cached()).collect()
}

fn prompt(seed: u64, len: usize) -> Vec<u32> {
    let mut random = Random(seed, 0);
    (0..len).map(|_| random.below(50)).collect()
}

fn windows(num_blocks: usize) -> KvCapacity {
    let window = Some(CacheWindow::Sliding(6));
    KvCapacity { groups: vec![CacheGroup { window }, CacheGroup::default()], ..KvCapacity::blocks(num_blocks, 4) }
}

#[test]
fn prompts_are_kept_over_a_restart() {
    let models = [
        KvCapacity::blocks(64, 4),
        KvCapacity { num_state_slots: 12, ..KvCapacity::blocks(64, 4) },
        windows(128),
        KvCapacity { groups: vec![CacheGroup { window: Some(CacheWindow::Sliding(6)) }], ..KvCapacity::blocks(64, 4) },
    ];
    for capacity in models {
        let dir = tempfile::tempdir().unwrap();
        let first = sequence(prompt(1, 61), 9);
        assert_eq!(session(&capacity, dir.path(), std::slice::from_ref(&first)), [0]);
        // The last whole block before the last token, whose row must run.
        assert_eq!(session(&capacity, dir.path(), std::slice::from_ref(&first)), [60], "{capacity:?}");
        let (longer, other) = (sequence(prompt(1, 61).into_iter().chain(prompt(2, 20)).collect(), 9), sequence(prompt(3, 61), 9));
        assert_eq!(session(&capacity, dir.path(), &[longer.clone(), other]), [60, 0]);
        assert_eq!(session(&capacity, dir.path(), &[longer]), [80]);
    }
}

#[test]
fn what_a_block_depends_on_keeps_files_apart() {
    let (capacity, dir) = (KvCapacity::blocks(64, 4), tempfile::tempdir().unwrap());
    let plain = sequence(prompt(1, 41), 3);
    let salted = NewSequence { cache_salt: 9, ..plain.clone() };
    let adapter = |mark| {
        let adapter = Arc::new(fake_adapter(mark));
        NewSequence { adapters: vec![AdapterRequest { adapter, scale: 1.0, first: 10 }], ..plain.clone() }
    };
    assert_eq!(
        session(&capacity, dir.path(), &[plain.clone(), salted.clone(), adapter(1)]),
        [0, 0, 8],
        "one step registers before the next"
    );
    assert_eq!(session(&capacity, dir.path(), &[NewSequence { cache_salt: 8, ..plain.clone() }]), [0], "another tenant");
    assert_eq!(session(&capacity, dir.path(), &[adapter(2)]), [8], "blocks before the adapter's first row are the model's");
    assert_eq!(session(&capacity, dir.path(), &[plain.clone(), salted, adapter(1)]), [40; 3]);
    let mut other_model = with_files(&capacity, dir.path(), [8; 32]);
    let client = other_model.run(plain);
    assert_eq!(other_model.clients[client].seen.cached(), 0);
}

#[test]
fn pictures_are_not_kept_and_texts_before_them_are() {
    let (capacity, dir) = (KvCapacity::blocks(64, 4), tempfile::tempdir().unwrap());
    let shown = Items::with_runs(prompt(1, 17), [(run(1, 8, Layout::Line, true), prompt(2, 20))]);
    let new = NewSequence { prompt: shown, ..sequence(vec![], 3) };
    assert_eq!(session(&capacity, dir.path(), std::slice::from_ref(&new)), [0]);
    assert_eq!(session(&capacity, dir.path(), &[new]), [16]);
}

#[test]
fn conversations_in_turns_come_back_from_files() {
    // 30 conversations of 200 tokens in a cache that holds 5
    let (capacity, dir) = (KvCapacity::blocks(300, 4), tempfile::tempdir().unwrap());
    let mut rig = with_files(&capacity, dir.path(), ROOT);
    // Computing must be slower than a disk, even one that others use.
    rig.control.lock().unwrap().step_time = Duration::from_millis(30);
    let mut histories: Vec<Vec<u32>> = (0..30).map(|i| prompt(i, 200)).collect();
    for history in &histories {
        rig.run(sequence(history.clone(), 1));
    }
    let (mut cached, mut all) = (0, 0);
    for _ in 0..2 {
        for history in &mut histories {
            history.extend([1, 2, 3]);
            let client = rig.run(sequence(history.clone(), 1));
            (cached, all) = (cached + rig.clients[client].seen.cached(), all + history.len());
            history.extend(&rig.clients[client].seen.tokens);
        }
    }
    assert!(f64::from(cached) >= 0.95 * all as f64, "{cached} of {all}");
    assert!(rig.metrics().prefix_cache_disk_hits_total.get() >= 50 * 196, "{}", rig.metrics().prefix_cache_disk_hits_total.get());
}

#[test]
fn files_that_are_damaged_or_gone_are_computed_again() {
    let (capacity, new) = (KvCapacity::blocks(64, 4), sequence(prompt(1, 81), 5));
    let damages: [fn(&Path); 4] = [
        |path| std::fs::remove_file(path).unwrap(),
        |path| std::fs::write(path, b"").unwrap(),
        |path| std::fs::File::options().write(true).open(path).unwrap().set_len(50).unwrap(),
        |path| {
            let mut bytes = std::fs::read(path).unwrap();
            let at = bytes.len() - 40;
            bytes[at] ^= 1;
            std::fs::write(path, bytes).unwrap();
        },
    ];
    for damage in damages {
        let dir = tempfile::tempdir().unwrap();
        session(&capacity, dir.path(), std::slice::from_ref(&new));
        let files: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .flat_map(|below| std::fs::read_dir(below.unwrap().path()).unwrap())
            .map(|file| file.unwrap().path())
            .collect();
        assert_eq!(files.len(), 21, "a file per full block");
        files.iter().step_by(2).for_each(|path| damage(path));
        let cached = session(&capacity, dir.path(), std::slice::from_ref(&new))[0];
        assert!(cached < 80, "{cached}");
        assert_eq!(session(&capacity, dir.path(), std::slice::from_ref(&new)), [80], "and saved again");
    }
}

#[test]
fn members_of_a_group_and_sequences_that_leave_wait_together() {
    let (capacity, dir) = (KvCapacity::blocks(64, 4), tempfile::tempdir().unwrap());
    let new = sequence(prompt(1, 61), 4);
    session(&capacity, dir.path(), std::slice::from_ref(&new));
    let mut rig = with_files(&capacity, dir.path(), ROOT);
    let group = Some(crate::SequenceGroup::unique());
    let both = vec![NewSequence { sequence_group: group, ..new.clone() }; 2];
    let clients = rig.enqueue_of(Client::default(), both);
    let gone = rig.enqueue(new);
    rig.clients[gone].events = None;
    rig.finish();
    clients.iter().for_each(|&client| rig.assert_solo(client));
    assert_eq!(rig.clients[clients[0]].seen.cached(), 60);
}

#[test]
fn a_cache_that_is_full_of_running_sequences_takes_no_files() {
    let (capacity, dir) = (KvCapacity::blocks(20, 4), tempfile::tempdir().unwrap());
    let all: Vec<NewSequence> = (0..6).map(|seed| sequence(prompt(seed, 33), 12)).collect();
    session(&capacity, dir.path(), &all);
    let mut rig = with_files(&capacity, dir.path(), ROOT);
    for round in 0..3 {
        let clients: Vec<usize> = all.iter().map(|new| rig.enqueue(new.clone())).collect();
        rig.finish();
        clients.iter().for_each(|&client| rig.assert_solo(client));
        assert!(round == 0 || rig.metrics().prefix_cache_disk_hits_total.get() > 0);
    }
}

#[test]
fn no_prompt_waits_for_files_that_are_slower_than_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, _) = FakeEngine::new(KvCapacity::blocks(64, 4), 8, 1);
    let mut blocks = crate::block_manager::BlockManager::new(KvCapacity::blocks(64, 4), 64, true);
    let store = Store::of(dir.path(), ENOUGH).unwrap();
    let mut tier = DiskTier::new(SavedPrefixes { store: store.clone(), root: ROOT }, &engine, &mut blocks).unwrap();
    assert_eq!(tier.patience(0, 0), None, "nothing to gain");
    assert_eq!(tier.patience(100, 1000), Some(PATIENCE), "nothing is known");
    let key = Key { content: [1; 32], part: Part::State };
    let identity = tiers::Identity::new(&ROOT, 0, b"", &[1]);
    store.save(key, identity.clone(), vec![0; 1000]);
    until("it is written", || store.contains(&key));
    store.load(vec![Wanted { key, identity, len: 1000 }]).unwrap().recv().unwrap();
    let speed = store.read_speed().unwrap();
    tier.learn(100, Duration::from_secs(100));
    tier.learn(MANY_ROWS - 1, Duration::ZERO);
    assert_eq!(tier.patience(10, speed as usize), Some(Duration::from_secs(10)), "a second of reading, ten of computing");
    let tries = (0..2 * TRY_EVERY).filter(|_| tier.patience(10, 100 * speed as usize).is_some()).count();
    assert_eq!(tries, 2, "now and then, to measure again");
    assert_eq!(tier.patience(10, speed as usize), Some(Duration::from_secs(10)));
}
