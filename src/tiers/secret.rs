//! The secret of a folder, from which the salts of tenants are computed. It lies beside the files, so that salts survive the process.

use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The secret of a folder, which is made on first use.
///
/// # Errors
/// The folder cannot be written to, or its secret cannot be read.
pub fn secret(folder: &Path) -> Result<[u8; 32]> {
    crate::folder::make(folder)?;
    let path = folder.join("secret");
    loop {
        match outside::read_regular(&path, 32) {
            Ok(bytes) => match <[u8; 32]>::try_from(bytes) {
                Ok(secret) => return Ok(secret),
                // One that is too short was cut, and its salts are lost.
                Err(_) => std::fs::remove_file(&path)?,
            },
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(std::io::Error::other)?;
        let aside = folder.join(format!("secret.{}.partial", std::process::id()));
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        file.write_all(&secret)?;
        // Of two processes that make one, the first wins: unlike renaming, linking replaces nothing.
        let linked = std::fs::hard_link(&aside, &path);
        std::fs::remove_file(&aside)?;
        match linked {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_keeps_its_secret() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        let first = secret(&folder).unwrap();
        assert_eq!(secret(&folder).unwrap(), first);
        assert_ne!(secret(dir.path()).unwrap(), first);
        let path = folder.join("secret");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, b"short").unwrap();
        let again = secret(&folder).unwrap();
        assert!(again != first && secret(&folder).unwrap() == again);
    }
}
