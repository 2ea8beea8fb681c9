use std::time::Duration;

use super::*;
use crate::key::Part;

fn key(token: u32) -> (Key, Identity) {
    let identity = Identity::new(&[0; 32], token, b"", &[token]);
    (Key { content: identity.hash, part: Part::Block(0) }, identity)
}

fn wanted(token: u32, len: usize) -> Wanted {
    let (key, identity) = key(token);
    Wanted { key, identity, len }
}

fn until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_queued_is_written_before_the_store_ends() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::of(dir.path(), 1 << 30).unwrap();
    assert!(Arc::ptr_eq(&store, &Store::of(dir.path(), 1 << 30).unwrap()), "models share it");
    for token in 0..100 {
        let (key, identity) = key(token);
        store.save(key, identity, vec![token as u8; 5000]);
    }
    drop(store);
    let store = Store::of(dir.path(), 1 << 30).unwrap();
    let files = store.load((0..100).map(|token| wanted(token, 5000)).collect()).unwrap();
    for token in 0..100 {
        assert_eq!(files.recv().unwrap().payload(), vec![token as u8; 5000]);
    }
    assert!(files.recv().is_err() && store.read_speed().is_some());
}

#[test]
fn nothing_comes_behind_a_file_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::of(dir.path(), 1 << 30).unwrap();
    for token in [1, 3] {
        let (key, identity) = key(token);
        store.save(key, identity, vec![0; 10]);
    }
    until(|| store.contains(&key(3).0));
    let files = store.load([1, 2, 3].map(|token| wanted(token, 10)).into()).unwrap();
    assert!(files.recv().is_ok() && files.recv().is_err());
    assert!(store.contains(&key(1).0) && !store.contains(&key(3).0), "what is behind is written again");
}

#[test]
fn a_queue_is_bounded_and_a_disk_that_fails_empties_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"").unwrap();
    let store = Store::of(&dir.path().join("file/below"), 1 << 40).unwrap();
    assert!(store.has_room(usize::MAX), "the first one always");
    store.queued.fetch_add(1, Ordering::Relaxed);
    assert!(store.has_room(1000) && !store.has_room(MAX_QUEUED as usize));
    store.queued.fetch_sub(1, Ordering::Relaxed);
    for token in 0..100 {
        let (key, identity) = key(token);
        store.save(key, identity, vec![0; 1000]);
    }
    until(|| store.queued.load(Ordering::Relaxed) == 0);
    assert!((0..100).all(|token| !store.contains(&key(token).0)));
}

#[test]
fn two_processes_may_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let stores = [0, 1].map(|_| Store::open(dir.path(), 1 << 20).unwrap());
    for token in 0..200 {
        for store in &stores {
            let (key, identity) = key(token);
            store.save(key, identity, vec![token as u8; 20_000]);
        }
    }
    stores.iter().for_each(|store| until(|| store.queued.load(Ordering::Relaxed) == 0));
    for token in 150..200 {
        for store in &stores {
            if let Ok(file) = store.load(vec![wanted(token, 20_000)]).unwrap().recv() {
                assert_eq!(file.payload(), vec![token as u8; 20_000]);
            }
        }
    }
    drop(stores);
    let again = Store::open(dir.path(), 1 << 20).unwrap();
    assert!((0..200).filter(|&token| again.contains(&key(token).0)).count() > 20);
}
