use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::key::{Identity, Part};

fn saved(token: u32, payload: usize) -> Saved {
    let identity = Identity::new(&[0; 32], 0, b"", &[token]);
    Saved { key: Key { content: identity.hash, part: Part::Block(0) }, identity, payload: vec![token as u8; payload] }
}

fn wanted(saved: &Saved) -> Wanted {
    Wanted { key: saved.key, identity: saved.identity.clone(), len: saved.payload.len() }
}

/// A folder for `count` files of 1000 bytes.
fn folder(path: &Path, count: u64) -> Folder {
    let folder = Folder::new(path.to_owned(), count * len(saved(0, 1000).identity.bytes.len(), 1000));
    folder.scan().unwrap();
    folder
}

fn reads(folder: &Folder, saved: &Saved) -> bool {
    folder.read(&wanted(saved)).is_some_and(|(bytes, place)| bytes[place] == saved.payload)
}

#[test]
fn a_file_is_its_owners_and_outlives_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b");
    let (first, one) = (folder(&path, 4), saved(1, 1000));
    first.write(&one).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let file = path.join(one.key.path());
    assert_eq!((mode(&path), mode(file.parent().unwrap()), mode(&file)), (0o700, 0o700, 0o600));
    let second = folder(&path, 4);
    assert!(second.contains(&one.key) && reads(&second, &one) && !reads(&second, &saved(2, 1000)));
    assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing unfinished is left");
}

#[test]
fn the_least_recently_used_leave_a_full_folder() {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder(dir.path(), 40);
    let all: Vec<Saved> = (0..41).map(|token| saved(token, 1000)).collect();
    all[..40].iter().for_each(|saved| folder.write(saved).unwrap());
    assert!(reads(&folder, &all[0]));
    folder.write(&all[40]).unwrap();
    let left: Vec<u32> = (0..41).filter(|&i| folder.contains(&all[i as usize].key)).collect();
    assert!(!left.contains(&1) && left.contains(&0) && left.contains(&40) && left.len() >= 38, "{left:?}");
    assert!((0..41).all(|i| reads(&folder, &all[i as usize]) == left.contains(&i)));
    folder.write(&saved(99, 1000 * 50)).unwrap();
    assert!(!folder.contains(&saved(99, 1).key), "larger than the folder");
}

#[test]
fn the_end_of_a_prompt_leaves_before_its_beginning() {
    let now = SystemTime::now();
    assert!(used_now(1000) < used_now(0) && used_now(0) >= now);
}

#[test]
fn what_others_left_is_not_counted_and_what_is_old_goes() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (saved(1, 1000), saved(2, 1000));
    {
        let folder = folder(dir.path(), 4);
        [&old, &new].into_iter().for_each(|saved| folder.write(saved).unwrap());
    }
    let place = |saved: &Saved| dir.path().join(saved.key.path());
    let age = |path: &Path, age: Duration| {
        OpenOptions::new().write(true).open(path).unwrap().set_modified(SystemTime::now() - age).unwrap();
    };
    age(&place(&old), MAX_AGE + Duration::from_secs(1));
    let beside = |name: &str| place(&new).with_file_name(name);
    for name in ["notes.txt", "dead.1-2.partial", "alive.1-3.partial"] {
        std::fs::write(beside(name), b"x").unwrap();
    }
    age(&beside("dead.1-2.partial"), UNFINISHED * 2);
    std::fs::write(dir.path().join("secret"), [0; 32]).unwrap();
    let folder = folder(dir.path(), 4);
    assert!(!folder.contains(&old.key) && !place(&old).exists() && reads(&folder, &new));
    assert!(beside("notes.txt").exists() && beside("alive.1-3.partial").exists() && !beside("dead.1-2.partial").exists());
    assert!(dir.path().join("secret").exists());
}

#[test]
fn a_file_under_another_name_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder(dir.path(), 4);
    let (mine, other) = (saved(1, 1000), saved(2, 1000));
    folder.write(&mine).unwrap();
    let path = dir.path().join(other.key.path());
    make(path.parent().unwrap()).unwrap();
    std::fs::rename(dir.path().join(mine.key.path()), &path).unwrap();
    assert!(!reads(&folder, &other) && !path.exists());
    assert!(!reads(&folder, &mine) && !folder.contains(&mine.key), "another process has removed it");
}

#[test]
fn a_folder_that_cannot_be_used_is_an_error_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, b"not a folder").unwrap();
    let folder = Folder::new(path.join("below"), 1 << 20);
    assert!(folder.scan().is_err() && folder.write(&saved(1, 10)).is_err() && !reads(&folder, &saved(1, 10)));
    assert_eq!(std::fs::read(&path).unwrap(), b"not a folder");
}
