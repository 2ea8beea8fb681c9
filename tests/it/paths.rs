//! Parses imports, declarations and paths in Rust source whose comments and strings are blanked out.

use std::collections::BTreeSet;

use crate::source::{code_only, words};

/// One name that a `use` brings into scope.
pub struct Import {
    /// The offsets of the `use` and of its semicolon.
    pub at: usize,
    pub end: usize,
    pub path: Vec<String>,
    /// The name in scope: the path's last name, or the name after `as`. Empty for a glob.
    pub name: String,
    pub glob: bool,
    /// Whether the import follows `pub`, `pub(crate)` or the like.
    pub public: bool,
}

/// `mod name;` outside of tests.
pub struct Declared {
    pub name: String,
    /// The file named by `#[path = "…"]`.
    pub path: Option<String>,
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The imports of a file.
pub fn imports(code: &str) -> Vec<Import> {
    let mut found = Vec::new();
    for at in words(code, "use") {
        let before = code[..at].trim_end();
        let public =
            before.ends_with("pub") || before.ends_with(')') && before.rfind("pub(").is_some_and(|start| !before[start..].contains('\n'));
        // `impl Trait + use<'a>` is not an import.
        let Some(length) = code[at..].find(';').filter(|_| !code[at + 3..].trim_start().starts_with('<')) else { continue };
        let end = at + length;
        let mut tree = Vec::new();
        read_tree(code[at + 3..end].trim(), &[], &mut tree);
        for (path, alias) in tree {
            let glob = path.last().is_some_and(|last| last == "*");
            let mut path = path;
            if glob || path.last().is_some_and(|last| last == "self") && path.len() > 1 {
                path.pop();
            }
            let name = if glob { String::new() } else { alias.unwrap_or_else(|| path.last().cloned().unwrap_or_default()) };
            found.push(Import { at, end, path, name, glob, public });
        }
    }
    found
}

/// The leaves of a `use` tree: the path of each, and its name after `as`, if any.
fn read_tree(text: &str, prefix: &[String], found: &mut Vec<(Vec<String>, Option<String>)>) {
    let text = text.trim().trim_start_matches("::");
    if text.is_empty() {
        return;
    }
    if let Some(open) = text.find('{') {
        let mut path = prefix.to_vec();
        path.extend(text[..open].split("::").map(str::trim).filter(|name| !name.is_empty()).map(String::from));
        let close = text.rfind('}').unwrap_or(text.len());
        let (mut depth, mut start) = (0, open + 1);
        for (i, byte) in text.bytes().enumerate().take(close).skip(open + 1) {
            depth += i32::from(byte == b'{') - i32::from(byte == b'}');
            if depth == 0 && byte == b',' {
                read_tree(&text[start..i], &path, found);
                start = i + 1;
            }
        }
        read_tree(&text[start..close], &path, found);
        return;
    }
    let (path, alias) = text.split_once(" as ").map_or((text, None), |(path, alias)| (path, Some(alias.trim().to_owned())));
    let mut names = prefix.to_vec();
    names.extend(path.split("::").map(|name| name.trim().to_owned()));
    found.push((names, alias));
}

/// The code with its imports blanked out. Every byte keeps its offset.
pub fn without_imports(code: &str, imports: &[Import]) -> String {
    let mut bytes = code.as_bytes().to_vec();
    for import in imports {
        bytes[import.at..import.end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
    }
    String::from_utf8(bytes).expect("imports begin and end at characters")
}

/// Every path of at least two names, with its offset: `a::b::C`.
pub fn paths(code: &str) -> Vec<(usize, Vec<String>)> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !is_name(bytes[at]) {
            at += 1;
            continue;
        }
        let start = at;
        let mut path = Vec::new();
        loop {
            let name = at;
            while at < bytes.len() && is_name(bytes[at]) {
                at += 1;
            }
            path.push(code[name..at].to_owned());
            if !(code[at..].starts_with("::") && bytes.get(at + 2).is_some_and(|&byte| is_name(byte))) {
                break;
            }
            at += 2;
        }
        // The tail of `x.method::<…>`, `<T as X>::y` or `::std::…` is not a separate path.
        let begins = !code[..start].trim_end().ends_with('.') && !code[..start].ends_with("::");
        if begins && path.len() > 1 {
            found.push((start, path));
        }
    }
    found
}

/// The names of the items that a file defines.
pub fn defined(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for keyword in ["struct", "enum", "union", "trait", "fn", "type", "const", "static", "macro_rules!"] {
        let starts = code.match_indices(keyword).filter(|(at, _)| {
            let before = at.checked_sub(1).map_or(b' ', |i| code.as_bytes()[i]);
            !is_name(before) && code.as_bytes().get(at + keyword.len()).is_some_and(u8::is_ascii_whitespace)
        });
        for (at, _) in starts {
            let rest = code[at + keyword.len()..].trim_start();
            let rest = rest.strip_prefix("mut ").unwrap_or(rest);
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            // Methods are indented. In `const fn` and `unsafe fn`, the name follows `fn`.
            let line = code[..at].rfind('\n').map_or(0, |i| i + 1);
            if !name.is_empty() && name != "fn" && !(keyword == "fn" && code[line..].starts_with(' ')) {
                found.insert(name);
            }
        }
    }
    found
}

/// The modules that a file declares in separate files, without tests.
pub fn declared_modules(text: &str) -> Vec<Declared> {
    let code = code_only(text);
    let mut found = Vec::new();
    for at in words(&code, "mod") {
        let rest = code[at + 3..].trim_start();
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if name.is_empty() || !rest[name.len()..].trim_start().starts_with(';') {
            continue;
        }
        // The attributes of this declaration: back to the end of the previous item.
        let start = code[..at].rfind([';', '}', '{']).map_or(0, |i| i + 1);
        let attributes = &text[start..at];
        if attributes.contains("cfg(test)") {
            continue;
        }
        let path = attributes.split("#[path = \"").nth(1).and_then(|rest| rest.split('"').next()).map(String::from);
        found.push(Declared { name, path });
    }
    found
}

mod tests {
    use super::*;

    #[test]
    fn use_trees_are_read_leaf_by_leaf() {
        let code = "pub use a::{self, b::{C, D as E}, f::*};\nuse crate::x;\npub(crate) use super::y::Z;";
        let leaves: Vec<_> = imports(code).into_iter().map(|i| (i.path.join("::"), i.name, i.glob, i.public)).collect();
        let leaf = |path: &str, name: &str, glob, public| (path.to_owned(), name.to_owned(), glob, public);
        let want = [
            leaf("a", "a", false, true),
            leaf("a::b::C", "C", false, true),
            leaf("a::b::D", "E", false, true),
            leaf("a::f", "", true, true),
            leaf("crate::x", "x", false, false),
            leaf("super::y::Z", "Z", false, true),
        ];
        assert_eq!(leaves, want);
    }

    #[test]
    fn paths_outside_of_imports_are_found() {
        let code = "use a::b;\nfn f(x: b::C) -> crate::d::E { x.g::<u8>(); b::h::i() }";
        let found: Vec<_> = paths(&without_imports(code, &imports(code))).into_iter().map(|(_, path)| path.join("::")).collect();
        assert_eq!(found, ["b::C", "crate::d::E", "b::h::i"]);
    }

    #[test]
    fn modules_with_a_path_are_found_and_test_modules_are_not() {
        let text = "\
mod a;
pub mod b { mod c; }
#[cfg(test)]
#[path = \"x_tests.rs\"]
mod tests;
#[cfg(unix)]
#[path = \"d.rs\"]
mod e;
";
        let found: Vec<_> = declared_modules(text).into_iter().map(|module| (module.name, module.path)).collect();
        assert_eq!(found, [("a".to_owned(), None), ("c".to_owned(), None), ("e".to_owned(), Some("d.rs".to_owned()))]);
    }

    #[test]
    fn items_are_defined_by_their_keyword() {
        let names =
            defined("pub const fn f() {}\nstatic mut X: u8 = 0;\nimpl A {\n    fn method() {}\n}\nmacro_rules! m { }\npub struct S;");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["S", "X", "f", "m"]);
    }
}
