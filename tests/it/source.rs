//! Reads source files for the rules of `tidy`: files, text without comments and strings, functions of Rust and of CUDA.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Folders without source files of the project.
const SKIPPED: &[&str] = &["target", "node_modules", "__pycache__", "shared"];

/// A file of the project, with its path relative to the root.
pub struct Source {
    pub path: String,
    pub text: String,
}

/// A function with a body.
pub struct Function {
    pub name: String,
    /// The line of the `fn`, counted from 1.
    pub line: usize,
    pub num_lines: usize,
    /// The number of parameters without `self`.
    pub num_params: usize,
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every text file of the project, sorted by path. Build outputs, environments and hidden folders other than `.ci` are left out.
static FILES: LazyLock<Vec<Source>> = LazyLock::new(|| {
    let mut paths = Vec::new();
    walk(root(), &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).ok()?;
        let path = path.strip_prefix(root()).expect("below the root").to_string_lossy().replace('\\', "/");
        Some(Source { path, text })
    };
    paths.into_iter().filter_map(read).collect()
});

/// Every text file whose path begins with `folder`, sorted by path.
pub fn files(folder: &str) -> Vec<&'static Source> {
    let is_below = |path: &str| folder.is_empty() || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    FILES.iter().filter(|file| is_below(&file.path)).collect()
}

fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let hidden = name.starts_with('.') && name != ".ci" && !entry.path().is_file();
        if hidden || SKIPPED.contains(&name.as_str()) {
            continue;
        }
        if entry.path().is_dir() {
            walk(&entry.path(), out);
        } else {
            out.push(entry.path());
        }
    }
}

/// Every Rust file below `folder`.
pub fn rust_files(folder: &str) -> Vec<&'static Source> {
    files(folder).into_iter().filter(|file| file.path.ends_with(".rs")).collect()
}

/// The line of a byte offset, counted from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// The source with comments, strings and character literals blanked out. Every line and every byte keeps its place.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match literal_end(bytes, at) {
            Some(end) => end,
            None => {
                at += 1;
                continue;
            }
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8(out).expect("only whole literals were blanked")
}

/// The end of the comment, string or character literal that starts at `at`. `None` if none starts there.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return Some(at + rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return Some(block_comment_end(bytes, at));
    }
    let in_word = at > 0 && is_word(bytes[at - 1]);
    if rest[0] == b'r' && !in_word || rest[0] == b'r' && at > 0 && bytes[at - 1] == b'b' {
        let hashes = rest[1..].iter().take_while(|&&b| b == b'#').count();
        if rest.get(1 + hashes) == Some(&b'"') {
            let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
            let body = at + 2 + hashes;
            let found = bytes[body..].windows(close.len()).position(|window| window == close);
            return Some(found.map_or(bytes.len(), |offset| body + offset + close.len()));
        }
    }
    match rest[0] {
        b'"' => Some(quoted_end(bytes, at, b'"')),
        // 'x' and '\n' are characters, and 'a without a closing quote is a lifetime.
        b'\'' if rest.get(1) == Some(&b'\\') => Some(quoted_end(bytes, at, b'\'')),
        b'\'' => {
            let width = std::str::from_utf8(&rest[1..rest.len().min(5)]).map_or_else(
                |error| std::str::from_utf8(&rest[1..1 + error.valid_up_to()]).ok().and_then(|s| s.chars().next()),
                |s| s.chars().next(),
            );
            let width = width?.len_utf8();
            (rest.get(1 + width) == Some(&b'\'')).then_some(at + 2 + width)
        }
        _ => None,
    }
}

fn block_comment_end(bytes: &[u8], at: usize) -> usize {
    let (mut depth, mut i) = (0usize, at);
    while i < bytes.len() {
        if bytes[i..].starts_with(b"/*") {
            depth += 1;
            i += 2;
        } else if bytes[i..].starts_with(b"*/") {
            depth -= 1;
            i += 2;
            if depth == 0 {
                return i;
            }
        } else {
            i += 1;
        }
    }
    bytes.len()
}

fn quoted_end(bytes: &[u8], at: usize, quote: u8) -> usize {
    let mut i = at + 1;
    while i < bytes.len() {
        match bytes[i] {
            b'\\' => i += 2,
            byte if byte == quote => return i + 1,
            _ => i += 1,
        }
    }
    bytes.len()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Offsets of `word` as a whole word.
pub fn words(code: &str, word: &str) -> Vec<usize> {
    let bytes = code.as_bytes();
    let whole = |&(at, _): &(usize, &str)| {
        let end = at + word.len();
        !(at > 0 && is_word(bytes[at - 1]) || end < bytes.len() && is_word(bytes[end]))
    };
    code.match_indices(word).filter(whole).map(|(at, _)| at).collect()
}

/// Every function with a body in `code` (see [`code_only`]).
pub fn functions(code: &str) -> Vec<Function> {
    words(code, "fn").into_iter().filter_map(|at| function(code, at)).collect()
}

fn function(code: &str, at: usize) -> Option<Function> {
    let bytes = code.as_bytes();
    let name: String = code[at + 2..].trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    if name.is_empty() {
        return None; // a function pointer's type
    }
    let open = parameters_open(bytes, at)?;
    let (num_params, close) = parameters(code, open);
    let body = close + 1 + bytes[close + 1..].iter().position(|&b| b == b'{')?;
    // A declaration in a trait ends at its semicolon. A semicolon inside [u8; 4] is part of a type.
    let declared = bytes[close + 1..body].iter().scan(0i32, |depth, &b| {
        *depth += i32::from(b == b'[') - i32::from(b == b']');
        Some(b == b';' && *depth == 0)
    });
    if declared.into_iter().any(|end| end) {
        return None;
    }
    let mut depth = 0;
    let end = body
        + bytes[body..].iter().position(|&b| {
            depth += i32::from(b == b'{') - i32::from(b == b'}');
            depth == 0
        })?;
    let line = line_of(code, at);
    Some(Function { name, line, num_lines: line_of(code, end) - line + 1, num_params })
}

/// The parenthesis that opens the parameters, after the generics.
fn parameters_open(bytes: &[u8], at: usize) -> Option<usize> {
    let mut angle = 0i32;
    (at..bytes.len()).find(|&i| {
        match bytes[i] {
            b'<' => angle += 1,
            b'>' if bytes[i - 1] != b'-' => angle -= 1,
            b'(' => return angle == 0,
            _ => {}
        }
        false
    })
}

/// The number of parameters after the parenthesis at `open`, and the offset of the closing parenthesis.
fn parameters(code: &str, open: usize) -> (usize, usize) {
    let bytes = code.as_bytes();
    let (mut depth, mut start, mut count) = (0i32, open + 1, 0);
    for i in open..bytes.len() {
        match bytes[i] {
            b'(' | b'[' | b'<' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b'>' if bytes[i - 1] != b'-' => depth -= 1,
            _ => {}
        }
        if depth == 0 || depth == 1 && bytes[i] == b',' {
            let param = code[start..i].trim();
            let receiver = param.split(':').next().unwrap_or("").split_whitespace().last();
            count += usize::from(!param.is_empty() && !matches!(receiver, Some("self" | "&self")));
            start = i + 1;
        }
        if depth == 0 {
            return (count, i);
        }
    }
    (count, bytes.len() - 1)
}

/// Every function with a body in a file of C++ or CUDA. The line is that of the declaration's start. Parameters are not counted.
pub fn c_functions(text: &str) -> Vec<Function> {
    let code = without_directives(&code_only(text));
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    // The start of the declaration that the next brace or semicolon ends, and the number of open braces of functions.
    let (mut start, mut depth, mut open) = (0, 0usize, None);
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'{' if depth > 0 => depth += 1,
            b'{' => {
                if let Some(name) = c_function_name(&code[start..at]) {
                    let begins = start + code[start..at].len() - code[start..at].trim_start().len();
                    (depth, open) = (1, Some((name, line_of(&code, begins))));
                }
                start = at + 1;
            }
            b'}' => {
                depth = depth.saturating_sub(1);
                if let Some((name, line)) = open.take_if(|_| depth == 0) {
                    found.push(Function { name, line, num_lines: line_of(&code, at) - line + 1, num_params: 0 });
                }
                start = at + 1;
            }
            b';' => start = at + 1,
            _ => {}
        }
    }
    found
}

/// The name of the function that a head declares, which precedes its parameters. `None` if the head belongs to a type, a namespace or an
/// initialiser.
fn c_function_name(head: &str) -> Option<String> {
    let mut head = head.trim();
    if let Some(rest) = head.strip_prefix("template") {
        let mut angle = 0;
        let end = rest.bytes().position(|byte| {
            angle += i32::from(byte == b'<') - i32::from(byte == b'>');
            angle == 0 && byte == b'>'
        })?;
        head = rest[end + 1..].trim();
    }
    let is_type = ["struct", "class", "union", "enum", "namespace"].iter().any(|word| words(head, word).first() == Some(&0));
    if is_type || head.contains('=') && !head.contains("operator") {
        return None;
    }
    // Attributes of kernels also have parentheses.
    let open = head.match_indices('(').map(|(at, _)| at).find(|&at| {
        let before = head[..at].trim_end();
        !["__launch_bounds__", "__cluster_dims__", "alignas", "__attribute__"].iter().any(|word| before.ends_with(word))
            && !before.ends_with('(')
    })?;
    let name = head[..open].trim_end().rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// The code with the lines of its preprocessor directives blanked out.
fn without_directives(code: &str) -> String {
    let mut goes_on = false;
    let blank = |line: &str| {
        let directive = goes_on || line.trim_start().starts_with('#');
        goes_on = directive && line.trim_end().ends_with('\\');
        if directive { " ".repeat(line.len()) } else { line.to_owned() }
    };
    code.split('\n').map(blank).collect::<Vec<_>>().join("\n")
}

/// `code` up to its inline test module.
pub fn without_tests(code: &str) -> &str {
    let tests = code.match_indices("#[cfg(test)]").find(|(at, mark)| {
        let next = code[at + mark.len()..].trim_start();
        next.starts_with("mod ") && next.find('{').is_some_and(|brace| !next[..brace].contains(';'))
    });
    tests.map_or(code, |(at, _)| &code[..at])
}

mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_characters_are_blanked() {
        let code = code_only("a('{', \"}\\\"{\", r#\"\"{\"#) // {\n/* { /* } */ { */ fn f<'a>(x: &'a str) { '\\'' }");
        assert_eq!(code.matches('{').count(), 1);
        assert_eq!(code.matches('}').count(), 1);
        assert!(code.contains("fn f<'a>(x: &'a str)"));
        assert_eq!(code.lines().count(), 2);
    }

    #[test]
    fn functions_are_measured() {
        let code = "\
trait T { fn declared(&self, a: [u8; 2]) -> [u8; 3]; }
fn f<F: Fn(u8, u8) -> u8>(
    &mut self,
    a: Vec<(u8, u8)>,
    b: F,
) -> [u8; 3]
where
    F: Send,
{
    1
}
";
        let found = functions(code);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].line, found[0].num_lines, found[0].num_params), ("f", 2, 10, 2));
    }

    #[test]
    fn functions_of_cuda_are_measured() {
        let code = r#"#define M(x) \
    { x }
namespace pen {
struct S {
    int a = 0;
    int get() const { return a; }
};
template <int N, class T = int>
__global__ void __launch_bounds__(256, 2)
    kernel(const S* s) {
    if (s) {
        f();
    }
}
int table[] = {1, 2};
int declared(int a);
extern "C" {
int plain(int a) { return a; }
}
}"#;
        let found: Vec<_> = c_functions(code).into_iter().map(|function| (function.name, function.line, function.num_lines)).collect();
        assert_eq!(found, [("get".to_owned(), 6, 1), ("kernel".to_owned(), 8, 7), ("plain".to_owned(), 18, 1)]);
    }

    #[test]
    fn an_inline_test_module_is_cut_off() {
        assert_eq!(without_tests("a\n#[cfg(test)]\nmod tests;\nb\n#[cfg(test)]\nmod tests { c }"), "a\n#[cfg(test)]\nmod tests;\nb\n");
    }
}
