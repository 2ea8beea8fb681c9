use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;

use super::*;

fn filled(path: &Path, text: &str) -> Result<()> {
    write(path, |out| out.write_all(text.as_bytes()))
}

fn whole(path: &Path) -> Result<()> {
    let mut output = Output::create(path)?;
    output.write_all(b"whole")?;
    output.finish()
}

#[test]
fn a_file_is_replaced_whole_and_keeps_its_permissions_and_its_links() {
    let dir = tempfile::tempdir().unwrap();
    let (path, link, dangling) = (dir.path().join("file"), dir.path().join("link"), dir.path().join("dangling"));
    filled(&path, "one").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    symlink("file", &link).unwrap();
    filled(&link, "two").unwrap();
    assert!(link.is_symlink());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
    symlink("new", &dangling).unwrap();
    whole(&dangling).unwrap();
    assert!(dangling.is_symlink() && dir.path().join("new").is_file());
    let failed = write(&path, |out| out.write_all(b"half").and(Err(Error::other("full"))));
    assert_eq!((failed.unwrap_err().to_string().as_str(), std::fs::read_to_string(&path).unwrap().as_str()), ("full", "two"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "nothing else is left");
}

#[test]
fn a_private_file_is_for_its_owner_alone_from_the_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    let output = Output::create_private(&path).unwrap();
    assert_eq!(std::fs::metadata(output.path()).unwrap().mode() & 0o777, 0o600);
    output.finish().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn nothing_but_a_regular_file_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
    symlink("fifo", at("to-fifo")).unwrap();
    symlink("b", at("a")).unwrap();
    symlink("a", at("b")).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    // What is below /proc cannot be replaced, whatever the code does. A device of the system could be, and would be missed.
    let mut streams = vec![("fifo", "a FIFO"), ("to-fifo", "a FIFO"), ("/proc/self/fd/1", "an open file")];
    let has_device = mknod(&at("device"), SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 3)).is_ok();
    streams.extend(has_device.then_some(("device", "a character device")));
    let others = [("socket", "a socket"), (".", "a directory"), ("..", "a directory"), ("a", "in a circle"), ("none/file", "no folder")];
    for (name, words) in streams.into_iter().chain(others) {
        let error = whole(&at(name)).unwrap_err().to_string();
        assert!(error.contains(words), "{name}: {error}");
        assert!(check_output(&at(name)).is_err() || name == "none/file", "{name}");
    }
    for (name, words) in others {
        let error = filled(&at(name), "text").unwrap_err().to_string();
        assert!(error.contains(words), "{name}: {error}");
    }
    if has_device {
        filled(&at("device"), "text").unwrap();
        assert!(std::fs::metadata(at("device")).unwrap().file_type().is_char_device());
    }
    assert!(std::fs::metadata(at("fifo")).unwrap().file_type().is_fifo());
}

#[test]
fn what_is_open_is_written_to_and_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    file.write_all(b"before ").unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&file);
    filled(Path::new(&format!("/dev/fd/{number}")), "behind ").unwrap();
    file.write_all(b"after").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "before behind after");
}

#[test]
fn what_a_dead_process_left_is_in_nobody_s_way() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(path.with_file_name(partial_name(&path, 0)), "left").unwrap();
    whole(&path).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole");
}
