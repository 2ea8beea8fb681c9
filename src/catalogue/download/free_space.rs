//! Free space on disk.

use std::path::Path;

use nix::sys::statvfs::statvfs;

/// Bytes free for this user on the file system of `dir`. None if the system does not tell.
pub fn free_bytes(dir: &Path) -> Option<u64> {
    let stat = statvfs(dir).ok()?;
    #[allow(clippy::useless_conversion, reason = "the field is narrower on other systems")]
    Some(u64::from(stat.blocks_available()).saturating_mul(stat.fragment_size()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_folder_has_room_and_one_that_is_not_there_has_none() {
        assert!(super::free_bytes(&std::env::temp_dir()).is_some_and(|free| free > 0));
        assert_eq!(super::free_bytes(std::path::Path::new("/no/such/folder")), None);
    }
}
