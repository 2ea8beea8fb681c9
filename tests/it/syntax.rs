//! Reads the syntax of source files for the rules of `tidy`: tokens, functions, imports and paths of Rust, and the functions of CUDA.
//!
//! `syn` parses items and imports. Everything below an item is read as tokens, because most paths in this code stand in macros too.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Expr, ExprLit, Item, ItemUse, Lit, UseTree, Visibility};

use crate::source::Source;

/// A function with a body.
pub struct Function {
    pub name: String,
    /// The line of the `fn`, or of the declaration's start in CUDA, counted from 1.
    pub line: usize,
    pub num_lines: usize,
    /// The number of parameters without `self`. Not counted in CUDA.
    pub num_params: usize,
}

/// One name that a `use` brings into scope.
pub struct Import {
    pub line: usize,
    /// The names of the path. The first is empty if the path begins with `::`.
    pub path: Vec<String>,
    /// The name in scope: the path's last name, or the name after `as`. Empty for a glob.
    pub name: String,
    pub glob: bool,
    /// Whether the import follows `pub`, `pub(crate)` or the like.
    pub public: bool,
}

/// `mod name;`
pub struct Declared {
    pub name: String,
    /// The file named by `#[path = "…"]`.
    pub path: Option<String>,
}

/// What a file imports, declares and names, without its test modules.
#[derive(Default)]
pub struct Code {
    pub imports: Vec<Import>,
    pub modules: Vec<Declared>,
    /// The names of the file's items.
    pub defined: BTreeSet<String>,
    /// Every path of at least two names outside of imports, with its line.
    pub paths: Vec<(usize, Vec<String>)>,
    /// Every name outside of imports.
    pub names: BTreeSet<String>,
}

fn parsed<T>(file: &Source, result: Result<T, impl std::fmt::Display>) -> T {
    result.unwrap_or_else(|error| panic!("{}: {error}", file.path))
}

/// The tokens of a Rust file.
pub fn tokens(file: &Source) -> TokenStream {
    parsed(file, file.text.parse::<TokenStream>())
}

/// The tokens of a Rust file without its test modules.
pub fn tokens_without_tests(file: &Source) -> TokenStream {
    parsed(file, syn::parse_file(&file.text)).items.into_iter().filter(is_no_test).map(Item::into_token_stream).collect()
}

/// All tokens in the order of the text. A group's own token precedes those inside it.
pub fn flat(tokens: TokenStream) -> Vec<TokenTree> {
    let inside = |token: &TokenTree| if let TokenTree::Group(group) = token { flat(group.stream()) } else { Vec::new() };
    tokens.into_iter().flat_map(|token| [vec![token.clone()], inside(&token)].concat()).collect()
}

pub fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

fn is_mark(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
}

pub fn is_group(token: &TokenTree, delimiter: Delimiter) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == delimiter)
}

pub fn line_of(token: &TokenTree) -> usize {
    token.span().start().line
}

/// The number of open angle brackets in a list of tokens.
#[derive(Default)]
struct Angles {
    depth: usize,
    after_dash: bool,
}

impl Angles {
    /// Whether no bracket is open after the next token.
    fn closed_after(&mut self, token: &TokenTree) -> bool {
        if is_mark(token, '<') {
            self.depth += 1;
        } else if is_mark(token, '>') && !self.after_dash {
            self.depth = self.depth.saturating_sub(1);
        }
        self.after_dash = is_mark(token, '-');
        self.depth == 0
    }
}

/// Every function with a body among the tokens of Rust, including those inside macros.
pub fn functions(tokens: TokenStream) -> Vec<Function> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found: Vec<Function> = (0..tokens.len()).filter_map(|at| function(&tokens[at..])).collect();
    found.extend(
        tokens
            .iter()
            .filter_map(|token| if let TokenTree::Group(group) = token { Some(functions(group.stream())) } else { None })
            .flatten(),
    );
    found
}

fn function(tokens: &[TokenTree]) -> Option<Function> {
    let [keyword, TokenTree::Ident(name), rest @ ..] = tokens else { return None };
    if !is_word(keyword, "fn") {
        return None;
    }
    let mut angles = Angles::default();
    let open = rest.iter().position(|token| angles.closed_after(token) && is_group(token, Delimiter::Parenthesis))?;
    let (TokenTree::Group(parameters), rest) = (&rest[open], &rest[open + 1..]) else { return None };
    // A declaration in a trait ends with a semicolon.
    let TokenTree::Group(body) = rest.iter().find(|token| is_mark(token, ';') || is_group(token, Delimiter::Brace))? else { return None };
    Some(measured(name.to_string(), keyword, body, num_parameters(parameters)))
}

fn measured(name: String, first: &TokenTree, body: &Group, num_params: usize) -> Function {
    let line = line_of(first);
    Function { name, line, num_lines: body.span_close().end().line - line + 1, num_params }
}

fn num_parameters(list: &Group) -> usize {
    let (list, mut angles): (Vec<TokenTree>, _) = (list.stream().into_iter().collect(), Angles::default());
    let parameters = list.split(|token| angles.closed_after(token) && is_mark(token, ','));
    let is_self = |tokens: &[TokenTree]| {
        tokens.split(|token| is_mark(token, ':')).next().and_then(<[_]>::last).is_some_and(|last| is_word(last, "self"))
    };
    parameters.filter(|tokens| !tokens.is_empty() && !is_self(tokens)).count()
}

fn has_test_mark(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.meta.to_token_stream().to_string().replace(' ', "") == "cfg(test)")
}

fn is_no_test(item: &Item) -> bool {
    !matches!(item, Item::Mod(module) if has_test_mark(&module.attrs))
}

impl Code {
    pub fn of(file: &Source) -> Self {
        let mut code = Self::default();
        code.read(parsed(file, syn::parse_file(&file.text)).items);
        code
    }

    fn read(&mut self, items: Vec<Item>) {
        for item in items.into_iter().filter(is_no_test) {
            match item {
                Item::Use(item) => self.read_import(&item),
                Item::Mod(module) => match module.content {
                    Some((_, items)) => self.read(items),
                    None => {
                        let path = module.attrs.iter().find_map(|attribute| value_of(attribute, "path"));
                        self.modules.push(Declared { name: module.ident.to_string(), path });
                    }
                },
                item => {
                    self.defined.extend(name_of(&item));
                    self.read_tokens(item.into_token_stream());
                }
            }
        }
    }

    fn read_import(&mut self, item: &ItemUse) {
        let line = item.use_token.span.start().line;
        let public = !matches!(item.vis, Visibility::Inherited);
        let first = item.leading_colon.iter().map(|_| String::new()).collect();
        read_tree(&item.tree, first, &mut |path, name, glob| self.imports.push(Import { line, path, name, glob, public }));
    }

    /// Finds the paths and names among tokens, and the imports inside functions.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            let statement = |end: usize| syn::parse2::<ItemUse>(tokens[at..=at + end].iter().cloned().collect()).ok();
            match &tokens[at] {
                TokenTree::Group(group) => self.read_tokens(group.stream()),
                word if is_word(word, "use") => {
                    // `impl Trait + use<'a>` is not an import.
                    if let Some((end, item)) =
                        tokens[at..].iter().position(|token| is_mark(token, ';')).and_then(|end| Some((end, statement(end)?)))
                    {
                        self.read_import(&item);
                        at += end;
                    }
                }
                TokenTree::Ident(_) => {
                    let names = path(&tokens[at..]);
                    // The tail of `<T as X>::y` or `::std::…` is not a path of its own.
                    let begins = at == 0 || !is_mark(&tokens[at - 1], ':') || at == 1 || !is_mark(&tokens[at - 2], ':');
                    let length = names.len();
                    self.names.extend(names.iter().cloned());
                    if begins && length > 1 {
                        self.paths.push((line_of(&tokens[at]), names));
                    }
                    at += 3 * (length - 1);
                }
                _ => {}
            }
            at += 1;
        }
    }
}

/// The names of the path with which the tokens begin: `a::b::C`.
fn path(tokens: &[TokenTree]) -> Vec<String> {
    match tokens {
        [TokenTree::Ident(name), a, b, rest @ ..]
            if is_mark(a, ':') && is_mark(b, ':') && matches!(rest.first(), Some(TokenTree::Ident(_))) =>
        {
            [vec![name.to_string()], path(rest)].concat()
        }
        [TokenTree::Ident(name), ..] => vec![name.to_string()],
        _ => Vec::new(),
    }
}

/// Calls `found` with the path, the name in scope and whether it is a glob, for each leaf of a `use` tree.
fn read_tree(tree: &UseTree, mut path: Vec<String>, found: &mut dyn FnMut(Vec<String>, String, bool)) {
    match tree {
        UseTree::Path(step) => {
            path.push(step.ident.to_string());
            read_tree(&step.tree, path, found);
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| read_tree(tree, path.clone(), found)),
        UseTree::Glob(_) => found(path, String::new(), true),
        UseTree::Name(leaf) if leaf.ident == "self" => {
            let name = path.last().cloned().unwrap_or_default();
            found(path, name, false);
        }
        UseTree::Name(leaf) => {
            path.push(leaf.ident.to_string());
            found(path, leaf.ident.to_string(), false);
        }
        UseTree::Rename(leaf) => {
            path.extend(Some(leaf.ident.to_string()).filter(|name| name != "self"));
            found(path, leaf.rename.to_string(), false);
        }
    }
}

/// The text of an attribute such as `#[name = "…"]`.
fn value_of(attribute: &Attribute, name: &str) -> Option<String> {
    let value = &attribute.meta.require_name_value().ok().filter(|pair| pair.path.is_ident(name))?.value;
    if let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = value { Some(text.value()) } else { None }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Every function with a body in a file of C++ or CUDA.
pub fn c_functions(file: &Source) -> Vec<Function> {
    let mut found = Vec::new();
    read_c(parsed(file, without_directives(&file.text).parse::<TokenStream>()), &mut found);
    found
}

fn read_c(tokens: TokenStream, found: &mut Vec<Function>) {
    let mut head = Vec::new();
    for token in tokens {
        match &token {
            TokenTree::Group(body) if is_group(&token, Delimiter::Brace) => {
                match c_function_name(&head) {
                    Some(name) => found.push(measured(name, &head[0], body, 0)),
                    None => read_c(body.stream(), found),
                }
                head.clear();
            }
            token if is_mark(token, ';') => head.clear(),
            _ => head.push(token),
        }
    }
}

/// The name of the function that a head declares, which precedes its parameters. `None` if the head belongs to a type, a namespace or an
/// initialiser.
fn c_function_name(mut head: &[TokenTree]) -> Option<String> {
    if head.first().is_some_and(|token| is_word(token, "template")) {
        let mut angles = Angles::default();
        let end = head.iter().position(|token| angles.closed_after(token) && is_mark(token, '>'))?;
        head = &head[end + 1..];
    }
    let is_type =
        ["struct", "class", "union", "enum", "namespace"].iter().any(|word| head.first().is_some_and(|token| is_word(token, word)));
    if is_type || head.iter().any(|token| is_mark(token, '=')) && !head.iter().any(|token| is_word(token, "operator")) {
        return None;
    }
    // Attributes of kernels also have parentheses.
    let attributes = ["__launch_bounds__", "__cluster_dims__", "alignas", "__attribute__"];
    head.windows(2).find_map(|pair| match pair {
        [TokenTree::Ident(name), open] if is_group(open, Delimiter::Parenthesis) && !attributes.iter().any(|word| name == word) => {
            Some(name.to_string())
        }
        _ => None,
    })
}

/// The text with the lines of its preprocessor directives blanked out.
fn without_directives(text: &str) -> String {
    let mut goes_on = false;
    let blank = |line: &str| {
        let directive = goes_on || line.trim_start().starts_with('#');
        goes_on = directive && line.trim_end().ends_with('\\');
        if directive { String::new() } else { line.to_owned() }
    };
    text.split('\n').map(blank).collect::<Vec<_>>().join("\n")
}

mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { path: "x".into(), text: text.into() }
    }

    #[test]
    fn functions_are_measured() {
        let code = "\
trait T { fn declared(&self, a: [u8; 2]) -> [u8; 3]; }
proptest! {
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
}
";
        let found = functions(tokens(&source(code)));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].line, found[0].num_lines, found[0].num_params), ("f", 3, 10, 2));
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
        let found: Vec<_> =
            c_functions(&source(code)).into_iter().map(|function| (function.name, function.line, function.num_lines)).collect();
        assert_eq!(found, [("get".to_owned(), 6, 1), ("kernel".to_owned(), 8, 7), ("plain".to_owned(), 18, 1)]);
    }

    #[test]
    fn use_trees_are_read_leaf_by_leaf() {
        let code = "pub use a::{self, b::{C, D as E}, f::*};\nuse ::x;\npub(crate) use super::y::Z;\nfn f() { use g::h; }";
        let leaves: Vec<_> = Code::of(&source(code)).imports.into_iter().map(|i| (i.path.join("::"), i.name, i.glob, i.public)).collect();
        let leaf = |path: &str, name: &str, glob, public| (path.to_owned(), name.to_owned(), glob, public);
        let want = [
            leaf("a", "a", false, true),
            leaf("a::b::C", "C", false, true),
            leaf("a::b::D", "E", false, true),
            leaf("a::f", "", true, true),
            leaf("::x", "x", false, false),
            leaf("super::y::Z", "Z", false, true),
            leaf("g::h", "h", false, false),
        ];
        assert_eq!(leaves, want);
    }

    #[test]
    fn paths_outside_of_imports_and_tests_are_found() {
        let code = "use a::b;\nfn f(x: b::C) -> crate::d::E { x.g::<u8>(); m!(b::h::i()) }\n#[cfg(test)]\nmod tests { fn f() { j::k() } }";
        let found: Vec<_> = Code::of(&source(code)).paths.into_iter().map(|(line, path)| format!("{line} {}", path.join("::"))).collect();
        assert_eq!(found, ["2 b::C", "2 crate::d::E", "2 b::h::i"]);
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
        let found: Vec<_> = Code::of(&source(text)).modules.into_iter().map(|module| (module.name, module.path)).collect();
        assert_eq!(found, [("a".to_owned(), None), ("c".to_owned(), None), ("e".to_owned(), Some("d.rs".to_owned()))]);
    }

    #[test]
    fn items_are_defined_by_their_keyword() {
        let text = "pub const fn f() {}\nstatic mut X: u8 = 0;\nimpl A {\n    fn method() {}\n}\nmacro_rules! m { }\npub struct S;";
        assert_eq!(Code::of(&source(text)).defined.into_iter().collect::<Vec<_>>(), ["S", "X", "f", "m"]);
    }
}
