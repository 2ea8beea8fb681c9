//! Checks that `src/engine/cuda/sys.rs` and the files of `sys/` declare the same as `cuda/include/penstock.h`: names, order and types of
//! all fields and parameters.

use std::collections::BTreeMap;

use crate::source::root;

/// The C interface stays small enough to be read at once.
const MAX_FUNCTIONS: usize = 20;

type Lists = BTreeMap<String, Vec<(String, String)>>;

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// The Rust spelling of a C type.
fn rust_type(c: &str) -> String {
    let c = c.trim();
    if let Some(inner) = c.strip_suffix('*') {
        let inner = inner.trim();
        return match inner.strip_prefix("const ") {
            Some(inner) => format!("*const {}", rust_type(inner)),
            None => format!("*mut {}", rust_type(inner)),
        };
    }
    match c {
        "uint32_t" => "u32",
        "uint64_t" => "u64",
        "int32_t" => "i32",
        "uint8_t" => "u8",
        "uint16_t" => "u16",
        "float" => "f32",
        "double" => "f64",
        "char" => "c_char",
        "void" => "c_void",
        other => other,
    }
    .to_owned()
}

/// The names and types of a declaration such as `const float *a` or `float a, b`.
fn declared(text: &str) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let mut names = text.split(',').map(str::trim);
    let first = names.next().unwrap();
    let at = first.rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap() + 1;
    let c_type = first[..at].trim();
    for name in std::iter::once(&first[at..]).chain(names) {
        fields.push((name.to_owned(), rust_type(c_type)));
    }
    fields
}

/// A file without its comments.
fn code(path: &str) -> String {
    text(path).lines().map(|line| line.split("//").next().unwrap_or("").to_owned() + "\n").collect()
}

fn header_code() -> String {
    code("cuda/include/penstock.h")
}

fn sys_code() -> String {
    code("src/engine/cuda/sys.rs") + &code("src/engine/cuda/sys/step.rs") + &code("src/engine/cuda/sys/pictures.rs")
}

/// Structs with their fields, and functions with their parameters and return types.
fn header() -> (Lists, Lists) {
    let code = header_code();
    let (mut structs, mut functions) = (Lists::new(), Lists::new());
    for part in code.split("typedef struct {").skip(1) {
        let (body, rest) = part.split_once('}').unwrap();
        let name = rest.split(';').next().unwrap().trim().to_owned();
        structs.insert(name, body.split(';').filter(|field| !field.trim().is_empty()).flat_map(declared).collect());
    }
    let body = &code[code.rfind("} pen_output;").unwrap() + "} pen_output;".len()..];
    for statement in body.split(';').filter(|statement| statement.contains('(')) {
        let (head, rest) = statement.split_once('(').unwrap();
        let (name, returns) = declared(&head.split_whitespace().collect::<Vec<_>>().join(" ")).remove(0);
        let params = rest.rsplit_once(')').unwrap().0;
        let mut list: Vec<_> = params.split(',').filter(|param| param.trim() != "void").flat_map(declared).collect();
        list.push(("->".into(), if returns == "c_void" { "()".into() } else { returns }));
        functions.insert(name, list);
    }
    (structs, functions)
}

fn pairs(list: &str) -> Vec<(String, String)> {
    let parts = list.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, kind) = part.trim_start_matches("pub ").split_once(':').unwrap();
            (name.trim().trim_start_matches("r#").to_owned(), kind.trim().to_owned())
        })
        .collect()
}

fn sys() -> (Lists, Lists) {
    let code = sys_code();
    let (mut structs, mut functions) = (Lists::new(), Lists::new());
    for part in code.split("pub struct ").skip(1) {
        let (name, rest) = part.split_once('{').unwrap();
        let fields = rest.split('}').next().unwrap();
        if !fields.contains("_opaque") {
            structs.insert(name.trim().to_owned(), pairs(fields));
        }
    }
    for part in code.split("pub fn ").skip(1) {
        let (name, rest) = part.split_once('(').unwrap();
        let (params, rest) = rest.split_once(')').unwrap();
        let mut list = pairs(params);
        let returns = rest.split(';').next().unwrap().trim().trim_start_matches("->").trim();
        list.push(("->".into(), if returns.is_empty() { "()".into() } else { returns.to_owned() }));
        functions.insert(name.to_owned(), list);
    }
    (structs, functions)
}

/// The words that begin with `pen_` and precede a parenthesis, sorted: the functions that a text declares.
fn declared_functions(code: &str) -> Vec<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let heads = code.split('(').map(|head| &head[head.rfind(|c| !is_word(c)).map_or(0, |at| at + 1)..]);
    let mut names: Vec<String> = heads.filter(|name| name.starts_with("pen_")).map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn structs_and_functions_are_the_same_on_both_sides() {
    let ((c_structs, c_functions), (structs, functions)) = (header(), sys());
    for (c, rust) in [(c_structs, structs), (c_functions, functions)] {
        assert_eq!(c.keys().collect::<Vec<_>>(), rust.keys().collect::<Vec<_>>());
        for (name, fields) in &c {
            assert_eq!(fields, &rust[name], "{name}: the header's, then sys.rs's");
        }
    }
}

/// The parsers above must not overlook anything that the comparison would then miss.
#[test]
fn no_function_or_struct_is_overlooked() {
    let ((c_structs, c_functions), (structs, functions)) = (header(), sys());
    let (c, rust) = (header_code(), sys_code());
    assert!(c_functions.len() <= MAX_FUNCTIONS, "{} functions, at most {MAX_FUNCTIONS} are allowed", c_functions.len());
    assert_eq!(c_functions.into_keys().collect::<Vec<_>>(), declared_functions(&c));
    assert_eq!(functions.into_keys().collect::<Vec<_>>(), declared_functions(&rust));
    assert_eq!(c_structs.len(), c.matches("typedef struct {").count());
    assert_eq!(structs.len(), rust.matches("pub struct ").count() - rust.matches("_opaque:").count());
}

/// The constants of `sys.rs` appear in the header as `#define NAME value` or as `NAME = value,`.
#[test]
fn constants_have_the_same_values() {
    let c: String = header_code().lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    let rust = text("src/engine/cuda/sys.rs");
    let constants: Vec<(&str, &str)> = rust
        .lines()
        .filter_map(|line| line.strip_prefix("pub const ")?.split_once(':'))
        .map(|(name, rest)| (name, rest.split_once('=').unwrap().1.trim().trim_end_matches(';')))
        .collect();
    assert!(constants.len() >= 10);
    for (name, value) in constants {
        let spellings = [format!("#define {name} {value}\n"), format!("#define {name} {value}u\n"), format!("#define {name} ({value})\n")];
        let in_enum = format!("{name} = {value},");
        assert!(spellings.iter().any(|spelling| c.contains(spelling)) || c.contains(&in_enum), "{name} is {value} in sys.rs");
    }
}
