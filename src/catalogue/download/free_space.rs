//! Free space on disk.

use std::path::Path;
use std::process::{Command, Stdio};

/// Bytes free for this user on the file system of `dir`, from the POSIX output of `df`. None if `df` fails.
pub fn free_bytes(dir: &Path) -> Option<u64> {
    let output = Command::new("df").arg("-Pk").arg(dir).env("LC_ALL", "C").stderr(Stdio::null()).output().ok()?;
    parse_df(&String::from_utf8_lossy(&output.stdout))
}

fn parse_df(text: &str) -> Option<u64> {
    let kib: u64 = text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    #[test]
    fn reads_the_posix_format() {
        let text = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/x 100 40 60 40% /\n";
        assert_eq!(super::parse_df(text), Some(60 * 1024));
        assert_eq!(super::parse_df("df: no such file"), None);
        assert!(super::free_bytes(&std::env::temp_dir()).is_some_and(|free| free > 0));
    }
}
