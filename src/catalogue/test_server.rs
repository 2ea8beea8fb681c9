//! A small HTTP server for tests. Each connection gets the next answer of a script.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// The answer to one request.
#[derive(Clone)]
pub enum Answer {
    /// The file with this ETag. Range and If-Range are honoured.
    File { body: Arc<Vec<u8>>, etag: &'static str },
    /// The file from the start, but the connection closes after `after` bytes.
    Cut { body: Arc<Vec<u8>>, etag: &'static str, after: usize },
    /// These bytes, then the connection closes.
    Raw(String),
    /// An endless body without a length.
    Endless,
}

/// The heads of the requests so far, in lower case.
pub type Heads = Arc<Mutex<Vec<String>>>;

/// Starts the server. Returns its address (`http://127.0.0.1:port`) and the requests it receives.
pub fn serve(script: Vec<Answer>) -> (String, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let heads = Heads::default();
    let log = heads.clone();
    std::thread::spawn(move || {
        for answer in script {
            let Ok((stream, _)) = listener.accept() else { return };
            let head = read_head(&stream);
            log.lock().unwrap().push(head.clone());
            // Fails in tests in which the client hangs up.
            let _ = reply(stream, &answer, &head);
        }
    });
    (address, heads)
}

/// Starts a server that acts like the hub for the repository `o/r` at `main`. It serves the files, and a listing in pages of two entries.
pub fn hub(files: Vec<(&'static str, Arc<Vec<u8>>)>) -> (String, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (heads, home) = (Heads::default(), address.clone());
    let kept = heads.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let head = read_head(&stream);
            kept.lock().unwrap().push(head.clone());
            let _ = reply(stream, &hub_answer(&home, &files, &head), &head);
        }
    });
    (address, heads)
}

fn hub_answer(home: &str, files: &[(&'static str, Arc<Vec<u8>>)], head: &str) -> Answer {
    let path = head.split(' ').nth(1).unwrap_or_default();
    if let Some(query) = path.strip_prefix("/api/models/o/r/tree/main?recursive=true") {
        let from: usize = query.strip_prefix("&cursor=").map_or(0, |cursor| cursor.parse().unwrap());
        let rows = files.iter().skip(from).take(2).map(|(path, body)| {
            let digest = super::download::hex(&<sha2::Sha256 as sha2::Digest>::digest(body.as_slice()));
            let lfs = serde_json::json!({ "oid": digest, "size": body.len(), "pointerSize": 1 });
            serde_json::json!({ "type": "file", "oid": "0", "size": 1, "path": path, "lfs": lfs })
        });
        let folder = serde_json::json!({ "type": "directory", "oid": "0", "size": 0, "path": "folder" });
        let page = serde_json::Value::from(rows.chain([folder]).collect::<Vec<_>>()).to_string();
        let next = format!("Link: <{home}/api/models/o/r/tree/main?recursive=true&cursor={}>; rel=\"next\"\r\n", from + 2);
        let link = if from + 2 < files.len() { next } else { String::new() };
        return Answer::Raw(format!("HTTP/1.1 200 OK\r\n{link}Content-Length: {}\r\nConnection: close\r\n\r\n{page}", page.len()));
    }
    let file = path.strip_prefix("/o/r/resolve/main/").and_then(|path| files.iter().find(|(name, _)| name.eq_ignore_ascii_case(path)));
    file.map_or_else(|| status("404 Not Found"), |(_, body)| Answer::File { body: body.clone(), etag: "\"v1\"" })
}

fn read_head(stream: &TcpStream) -> String {
    let mut head = String::new();
    let mut reader = BufReader::new(stream);
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|n| n > 0) {}
    head.to_lowercase()
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn reply(mut stream: TcpStream, answer: &Answer, head: &str) -> std::io::Result<()> {
    match answer {
        Answer::Raw(text) => stream.write_all(text.as_bytes()),
        Answer::File { body, etag } => {
            let range = header(head, "range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
            match range.filter(|_| header(head, "if-range") == Some(etag)) {
                Some(from) => {
                    let (last, total) = (body.len() - 1, body.len());
                    write!(stream, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{last}/{total}\r\n")?;
                    send(&mut stream, &body[from..], body.len() - from, etag)
                }
                None => {
                    write!(stream, "HTTP/1.1 200 OK\r\n")?;
                    send(&mut stream, body, body.len(), etag)
                }
            }
        }
        Answer::Cut { body, etag, after } => {
            write!(stream, "HTTP/1.1 200 OK\r\n")?;
            send(&mut stream, &body[..*after], body.len(), etag)
        }
        Answer::Endless => {
            write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            loop {
                stream.write_all(&[7; 4096])?;
            }
        }
    }
}

fn send(stream: &mut TcpStream, bytes: &[u8], length: usize, etag: &str) -> std::io::Result<()> {
    write!(stream, "Content-Length: {length}\r\nETag: {etag}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(bytes)
}

pub fn redirect_to(location: &str) -> Answer {
    Answer::Raw(format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
}

pub fn status(line: &str) -> Answer {
    Answer::Raw(format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
}
