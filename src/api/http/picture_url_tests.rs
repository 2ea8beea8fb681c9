//! Fetches from a server of this machine and from names that lead elsewhere.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// What the server answers to a path.
type Answer = fn(&str) -> String;

/// Starts a server. Returns its address and the heads of its requests.
fn serve(answer: Answer) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let log = heads.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
            let path = head[0].split(' ').nth(1).unwrap().to_owned();
            log.lock().unwrap().push(head.join("\n").to_lowercase());
            // The client may hang up.
            let _ = stream.write_all(answer(&path).as_bytes());
            if path == "/slow" {
                std::thread::sleep(Duration::from_secs(3));
            }
        }
    });
    (address, heads)
}

fn body(text: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}", text.len())
}

fn to(location: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}

fn policy(hosts: &[&str]) -> UrlPolicy {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    UrlPolicy { time: Duration::from_secs(2), most: 1000, ..UrlPolicy::new(&hosts) }
}

/// A policy that resolves every name to these addresses.
fn resolving(hosts: &[&str], addresses: &'static [&'static str]) -> UrlPolicy {
    let resolve = |_: &str, port| Ok(addresses.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), port)).collect());
    UrlPolicy { resolve: Arc::new(resolve), ..policy(hosts) }
}

fn run(url: &str, policy: &UrlPolicy) -> Result<Vec<u8>, FetchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(fetch(url, policy));
    // A thread that still waits for a server does not hold up the test.
    runtime.shutdown_background();
    result
}

#[test]
fn nothing_is_fetched_by_default_and_only_from_the_hosts_of_the_list() {
    let (address, heads) = serve(|_| body("png"));
    let url = format!("http://{address}/a.png?x=1#part");
    let error = run(&url, &policy(&[])).unwrap_err();
    assert!(error == FetchError::Off && error.to_string().contains("server.picture_hosts"), "{error}");
    let own = address.to_string();
    for list in [&["example.com"][..], &["127.0.0.1"], &["127.0.0.1:1"], &["*.0.0.1"]] {
        let error = run(&url, &policy(list)).unwrap_err();
        assert!(
            error == FetchError::NotAllowed("127.0.0.1".into()) && error.to_string().contains("server.picture_hosts"),
            "{list:?}: {error}"
        );
    }
    let wildcard = format!("*:{}", address.port());
    assert_eq!(run(&url, &policy(&[&wildcard])), Err(FetchError::NotPublic("127.0.0.1".into())), "a wildcard names no private address");
    assert!(heads.lock().unwrap().is_empty());
    assert_eq!(run(&url, &policy(&[&wildcard, &own])).unwrap(), b"png");
    let head = heads.lock().unwrap()[0].clone();
    assert!(head.starts_with("get /a.png?x=1 http/1.1") && !head.contains("authorization") && !head.contains("cookie"), "{head}");
}

#[test]
fn the_list_has_names_subdomains_and_ports() {
    let target = |url: &str| Target::parse(url).unwrap();
    for (entry, url, allowed) in [
        ("example.com", "https://example.com/x", true),
        ("example.com", "http://EXAMPLE.com./x", true),
        ("example.com", "https://example.com:443/x", true),
        ("example.com", "https://example.com:8443/x", false),
        ("example.com:8443", "https://example.com:8443/x", true),
        ("example.com:8443", "https://example.com/x", false),
        ("example.com", "https://a.example.com/x", false),
        ("example.com", "https://badexample.com/x", false),
        ("*.example.com", "https://a.b.example.com/x", true),
        ("*.example.com", "https://example.com/x", false),
        ("*.example.com", "https://badexample.com/x", false),
        ("*", "https://any.example/x", true),
        ("*", "https://any.example:22/x", false),
        ("[::1]:9000", "http://[::1]:9000/x", true),
    ] {
        assert_eq!(policy(&[entry]).allows(&target(url)).is_some(), allowed, "{entry} and {url}");
    }
}

#[test]
fn a_malformed_url_is_told_before_anything_is_asked() {
    let all = policy(&["*"]);
    for (url, words) in [
        ("file:///etc/passwd", "https:// or http://"),
        ("gopher://example.com/x", "https:// or http://"),
        ("ftp://example.com/x", "https:// or http://"),
        ("/a.png", "https:// or http://"),
        ("http://user:secret@example.com/x", "a user name or a password"),
        ("http://example.com@10.0.0.1/x", "a user name or a password"),
        ("http://example.com:0/x", "no valid port"),
        ("http://example.com:/x", "no valid port"),
        ("http:///x", "malformed"),
        ("http://exa mple.com/x", "percent-encoded"),
        ("http://example.com\\@10.0.0.1/x", "percent-encoded"),
        ("http://example.com/\r\nhost: x", "percent-encoded"),
        (&format!("http://example.com/{}", "x".repeat(9000)), "longer than"),
    ] {
        let error = run(url, &all).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains("secret"), "{url:?}: {error}");
    }
}

#[test]
fn addresses_that_are_not_public_are_refused_in_every_form() {
    for host in [
        "127.0.0.1",
        "10.0.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.168.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "[::]",
        "[::1]",
        "[fe80::1]",
        "[fc00::1]",
        "[ff02::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:a00:1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        // forms that only a resolver reads
        "127.1",
        "2130706433",
        "0x7f.1",
        "localhost",
    ] {
        let error = run(&format!("http://{host}/x"), &policy(&["*"])).unwrap_err();
        // A resolver need not know every form.
        let due = [FetchError::NotPublic(host.into()), FetchError::Unreachable(host.into())];
        let literal = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
        assert!(due[..if literal { 1 } else { 2 }].contains(&error), "{host}: {error:?}");
    }
    for addresses in [&["10.0.0.1"][..], &["93.184.216.34", "127.0.0.1"], &["::ffff:169.254.169.254"], &[]] {
        let error = run("https://pictures.example/x", &resolving(&["pictures.example"], addresses)).unwrap_err();
        assert_eq!(error, FetchError::NotPublic("pictures.example".into()), "{addresses:?}: an exact name is no address");
    }
}

#[test]
fn a_host_is_resolved_once_and_the_connection_goes_there() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let resolve = |_: &str, port| {
        let ip = if ASKED.fetch_add(1, Ordering::Relaxed) == 0 { "192.0.2.77" } else { "127.0.0.1" };
        Ok(vec![SocketAddr::new(ip.parse().unwrap(), port)])
    };
    // 192.0.2.0/24 is for documentation, and so refused: the second answer must never be asked for.
    let error = run("http://pictures.example/x", &UrlPolicy { resolve: Arc::new(resolve), ..policy(&["*"]) }).unwrap_err();
    assert_eq!((error, ASKED.load(Ordering::Relaxed)), (FetchError::NotPublic("pictures.example".into()), 1));
    let (address, heads) = serve(|_| body("png"));
    let agent = Agent::with_parts(Config::default(), DefaultConnector::default(), Pinned(vec![address]));
    agent.get("http://pictures.example/x").call().unwrap();
    assert!(heads.lock().unwrap()[0].contains("host: pictures.example"), "the name stays, and the address is the checked one");
}

#[test]
fn every_redirect_is_checked_like_a_url() {
    let (address, heads) = serve(|path| match path {
        "/relative/a" => to("b.png"),
        "/relative/b.png" => body("relative"),
        "/metadata" => to("http://169.254.169.254/latest/meta-data"),
        "/other" => to("http://other.example/x"),
        "/file" => to("file:///etc/passwd"),
        "/user" => to("http://u:p@127.0.0.1/x"),
        "/twice" => to("/once"),
        "/once" => to("/relative/b.png"),
        "/loop" => to("/loop"),
        "/nowhere" => "HTTP/1.1 302 Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".into(),
        _ => "HTTP/1.1 404 Not Found\r\ncontent-length: 6\r\nconnection: close\r\n\r\nsecret".into(),
    });
    let (own, list) = (address.to_string(), |more: &[&str]| policy(&[&[address.to_string().as_str()], more].concat()));
    let get = |path: &str, more: &[&str]| run(&format!("http://{own}{path}"), &list(more));
    assert_eq!(get("/relative/a", &[]).unwrap(), b"relative");
    assert_eq!(get("/twice", &[]).unwrap(), b"relative");
    assert_eq!(get("/metadata", &[]), Err(FetchError::NotAllowed("169.254.169.254".into())));
    assert_eq!(get("/metadata", &["*"]), Err(FetchError::NotPublic("169.254.169.254".into())));
    assert_eq!(get("/other", &[]), Err(FetchError::NotAllowed("other.example".into())));
    for path in ["/file", "/user", "/nowhere"] {
        assert_eq!(get(path, &["*"]), Err(FetchError::Redirect("127.0.0.1".into())), "{path}");
    }
    heads.lock().unwrap().clear();
    assert_eq!(get("/loop", &[]), Err(FetchError::TooManyRedirects));
    assert_eq!(heads.lock().unwrap().len(), 1 + MAX_REDIRECTS);
    let error = get("/gone", &[]).unwrap_err();
    assert_eq!(error, FetchError::Status { host: "127.0.0.1".into(), status: 404 });
    assert!(!error.to_string().contains("secret"));
    let down = Target::parse("https://a.example/x").unwrap().join("http://a.example/x");
    assert_eq!(down, Err(FetchError::Redirect("a.example".into())), "no redirect leads from https to http");
}

#[test]
fn a_large_or_slow_picture_ends_at_the_limit() {
    let (address, _) = serve(|path| match path {
        "/announced" => "HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n".into(),
        "/endless" => format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}", "x".repeat(5000)),
        "/cut" => "HTTP/1.1 200 OK\r\ncontent-length: 900\r\nconnection: close\r\n\r\nshort".into(),
        "/slow" => "HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n".into(),
        _ => body(&"x".repeat(1000)),
    });
    let own = address.to_string();
    let get = |path: &str| run(&format!("http://{own}{path}"), &policy(&[&own]));
    assert_eq!(get("/right").map(|bytes| bytes.len()), Ok(1000));
    assert_eq!((get("/announced"), get("/endless")), (Err(FetchError::TooLarge(1000)), Err(FetchError::TooLarge(1000))));
    assert_eq!(get("/cut"), Err(FetchError::Unreachable("127.0.0.1".into())));
    let start = Instant::now();
    assert_eq!(get("/slow"), Err(FetchError::TooSlow(2)));
    assert!(start.elapsed() < Duration::from_millis(2900), "{:?}", start.elapsed());
    let hangs = |_: &str, _| {
        std::thread::sleep(Duration::from_secs(4));
        Ok(Vec::new())
    };
    let start = Instant::now();
    let error = run("http://pictures.example/x", &UrlPolicy { resolve: Arc::new(hangs), ..policy(&["*"]) });
    assert_eq!(error, Err(FetchError::TooSlow(2)), "a resolver that hangs");
    assert!(start.elapsed() < Duration::from_millis(2900), "{:?}", start.elapsed());
}
