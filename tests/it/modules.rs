//! Finds the modules of the workspace's crates and which of them mention each other: enough of Rust's name resolution for the rules about
//! imports.
//!
//! Skips test modules (`#[cfg(test)] mod x`).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::source::{Source, files, rust_files};
use crate::syntax::{Code, Import};

/// A module: its crate and its path within it, such as `penstock/engine/cpu`.
pub type Module = String;

/// One mention of a module in a file.
pub struct Mention {
    /// Index of the mentioning file.
    pub from: usize,
    pub line: usize,
    /// The module that the text names.
    pub named: Module,
    /// Index of the file that defines the item, past re-exports.
    pub target: usize,
}

pub struct Modules {
    pub files: Vec<&'static Source>,
    /// The module of each file.
    pub module_of: Vec<Module>,
    pub mentions: Vec<Mention>,
}

/// What a name in a module refers to.
#[derive(Clone)]
enum Name {
    /// An item that this file defines.
    Item(usize),
    Module(Module),
}

/// A file's scope during name resolution.
struct Scope {
    module: Module,
    code: Code,
}

struct Resolver {
    scopes: Vec<Scope>,
    file_of: HashMap<Module, usize>,
    crates: BTreeSet<String>,
}

/// A crate of the workspace. Paths are relative to the project's root.
pub struct Crate {
    /// The name that other crates use for it.
    pub name: String,
    /// The folder of its `Cargo.toml`, with a final `/`. Empty for the project's root.
    pub folder: String,
    pub manifest: &'static str,
    /// The path of its root file: the library's, or the program's if there is no library.
    pub lib: String,
}

/// The lines of a section of a manifest.
pub fn section<'a>(manifest: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let head = format!("[{name}]");
    manifest.lines().skip_while(move |line| *line != head).skip(1).take_while(|line| !line.starts_with('['))
}

/// The crates of the workspace.
pub fn crates() -> Vec<Crate> {
    // A crate with a workspace of its own, such as the fuzz targets, is not part of this one.
    let is_member = |file: &&Source| file.path.ends_with("/Cargo.toml") && !file.text.contains("\n[workspace]\n");
    let manifests: Vec<_> = files("").into_iter().filter(|file| file.path == "Cargo.toml" || is_member(file)).collect();
    let value = |line: &str, key: &str| {
        let (name, rest) = line.split_once('=')?;
        (name.trim() == key).then(|| rest.split('"').nth(1).map(str::to_owned))?
    };
    // With `api = { package = "penstock-api", … }`, the key is the crate's name.
    let root = manifests.iter().find(|file| file.path == "Cargo.toml").expect("a manifest in the root");
    let aliases: HashMap<String, String> = section(&root.text, "workspace.dependencies")
        .filter_map(|line| {
            let package = line.split_once("package = \"")?.1.split('"').next()?;
            Some((package.to_owned(), line.split('=').next()?.trim().to_owned()))
        })
        .collect();
    let found = manifests.iter().filter_map(|file| {
        let get = |name, key| section(&file.text, name).find_map(|line| value(line, key));
        let package = get("package", "name")?;
        let name = aliases.get(&package).cloned().unwrap_or_else(|| package.replace('-', "_"));
        let folder = file.path.trim_end_matches("Cargo.toml").to_owned();
        let lib = format!("{folder}{}", get("lib", "path").or_else(|| get("[bin]", "path")).unwrap_or_else(|| "src/lib.rs".to_owned()));
        Some(Crate { name, folder, manifest: &file.text, lib })
    });
    found.collect()
}

impl Modules {
    /// The modules of all crates, without tests.
    pub fn of_workspace() -> Self {
        let sources: BTreeMap<String, &'static Source> = rust_files("").into_iter().map(|file| (file.path.clone(), file)).collect();
        let mut found = Vec::new();
        for of_workspace in crates() {
            collect(&sources, &of_workspace.lib, &of_workspace.name, &mut found);
        }
        Self::resolve(found)
    }

    fn resolve(found: Vec<(&'static Source, Scope)>) -> Self {
        let (files, scopes): (Vec<_>, Vec<Scope>) = found.into_iter().unzip();
        let mut file_of = HashMap::new();
        for (i, scope) in scopes.iter().enumerate() {
            // If two files define one module (for builds with and without a feature), the first counts.
            file_of.entry(scope.module.clone()).or_insert(i);
        }
        let crates = scopes.iter().map(|scope| scope.module.split('/').next().expect("a crate").to_owned()).collect();
        let resolver = Resolver { scopes, file_of, crates };
        let mentions = (0..resolver.scopes.len()).flat_map(|file| resolver.mentions(file)).collect();
        let module_of = resolver.scopes.into_iter().map(|scope| scope.module).collect();
        Self { files, module_of, mentions }
    }

    /// The files that each file imports, not counting itself.
    pub fn imports(&self) -> Vec<BTreeSet<usize>> {
        let mut imports = vec![BTreeSet::new(); self.files.len()];
        for mention in self.mentions.iter().filter(|mention| mention.from != mention.target) {
            imports[mention.from].insert(mention.target);
        }
        imports
    }
}

/// Adds a file's module and the modules that it declares.
fn collect(sources: &BTreeMap<String, &'static Source>, path: &str, module: &str, found: &mut Vec<(&'static Source, Scope)>) {
    let file = sources.get(path).unwrap_or_else(|| panic!("{path}: no such file, declared as module {module}"));
    let name = path.rsplit('/').next().expect("a name");
    let folder = path.trim_end_matches(name);
    let folder =
        if ["mod.rs", "lib.rs", "main.rs"].contains(&name) { folder.to_owned() } else { format!("{}/", path.trim_end_matches(".rs")) };
    let (at, code) = (found.len(), Code::of(file));
    found.push((*file, Scope { module: module.to_owned(), code }));
    for i in 0..found[at].1.code.modules.len() {
        let declared = &found[at].1.code.modules[i];
        let places = match &declared.path {
            Some(at) => vec![format!("{}{at}", path.trim_end_matches(name))],
            None => vec![format!("{folder}{}.rs", declared.name), format!("{folder}{}/mod.rs", declared.name)],
        };
        let place = places
            .iter()
            .find(|place| sources.contains_key(*place))
            .unwrap_or_else(|| panic!("{path}: no file for `mod {}`", declared.name));
        collect(sources, place, &format!("{module}/{}", declared.name), found);
    }
}

impl Resolver {
    /// The mentions in a file.
    fn mentions(&self, file: usize) -> Vec<Mention> {
        let code = &self.scopes[file].code;
        let mut found = Vec::new();
        let mut add = |line: usize, named: Module, target: usize| found.push(Mention { from: file, line, named, target });
        for import in code.imports.iter().filter(|import| import.glob) {
            self.used_by_glob(file, import).into_iter().for_each(|(named, target)| add(import.line, named, target));
        }
        for import in code.imports.iter().filter(|import| !import.glob) {
            // A re-export alone uses nothing. For an imported module, the paths through it count.
            let is_used = code.names.contains(&import.name);
            let is_prefix = code.paths.iter().any(|(_, path)| path[0] == import.name);
            match self.path(file, &import.path, 0) {
                Some((named, Name::Item(target))) if is_used || !import.public => add(import.line, named, target),
                Some((named, Name::Module(module))) if !is_prefix && !import.public => add(import.line, named, self.file_of[&module]),
                _ => {}
            }
        }
        for (line, path) in &code.paths {
            match self.path(file, path, 0) {
                Some((named, Name::Item(target))) => add(*line, named, target),
                Some((named, Name::Module(module))) => add(*line, named, self.file_of[&module]),
                None => {}
            }
        }
        found
    }

    /// The names of a glob import's module that the file uses.
    fn used_by_glob(&self, file: usize, import: &Import) -> Vec<(Module, usize)> {
        let Some((named, Name::Module(module))) = self.path(file, &import.path, 0) else { return Vec::new() };
        let other = self.file_of[&module];
        if import.public || other == file {
            return Vec::new();
        }
        let there = &self.scopes[other].code;
        let names = there.defined.iter().chain(there.imports.iter().filter(|import| !import.glob).map(|import| &import.name));
        let used = names.filter(|name| self.scopes[file].code.names.contains(*name));
        used.filter_map(|name| match self.member(&module, name, 0)? {
            Name::Item(target) => Some((named.clone(), target)),
            Name::Module(module) => Some((named.clone(), self.file_of[&module])),
        })
        .collect()
    }

    /// Resolves a path: the deepest module that the text spells out, and what the path refers to.
    fn path(&self, file: usize, path: &[String], depth: usize) -> Option<(Module, Name)> {
        let module = &self.scopes[file].module;
        let (first, mut rest) = path.split_first()?;
        let krate = module.split('/').next()?;
        let parent = |module: &str| module.rsplit_once('/').map(|(parent, _)| parent.to_owned());
        let mut at = match first.as_str() {
            // A path that begins with `::` names a crate.
            "" => {
                let (name, tail) = rest.split_first().filter(|(name, _)| self.crates.contains(*name))?;
                rest = tail;
                Name::Module(name.clone())
            }
            "crate" => Name::Module(krate.to_owned()),
            "self" => Name::Module(module.clone()),
            "super" => Name::Module(parent(module)?),
            name => match self.member(module, name, depth + 1) {
                Some(found) => found,
                None if self.crates.contains(name) => Name::Module(name.to_owned()),
                None => return None,
            },
        };
        let mut named = match &at {
            Name::Module(module) => module.clone(),
            Name::Item(_) => module.clone(),
        };
        while let (Name::Module(module), Some((next, tail))) = (at.clone(), rest.split_first()) {
            at = match next.as_str() {
                "super" => Name::Module(parent(&module)?),
                "self" => Name::Module(module),
                name => self.member(&module, name, depth + 1).unwrap_or(Name::Item(self.file_of[&module])),
            };
            if let Name::Module(deeper) = &at {
                named.clone_from(deeper);
            }
            rest = tail;
        }
        Some((named, at))
    }

    /// Resolves a name in a module: a child module, an item, or an import.
    fn member(&self, module: &str, name: &str, depth: usize) -> Option<Name> {
        let child = format!("{module}/{name}");
        if self.file_of.contains_key(&child) {
            return Some(Name::Module(child));
        }
        let file = self.file_of[module];
        let code = &self.scopes[file].code;
        if code.defined.contains(name) {
            return Some(Name::Item(file));
        }
        if depth > 24 {
            return None;
        }
        if let Some(import) = code.imports.iter().find(|import| !import.glob && import.name == name) {
            // In `use gguf;` and the like, the path's first name is the import's own name.
            let itself = import.path.len() == 1 && import.path[0] == name;
            return if itself {
                self.crates.contains(name).then(|| Name::Module(name.to_owned()))
            } else {
                Some(self.path(file, &import.path, depth + 1)?.1)
            };
        }
        code.imports.iter().filter(|import| import.glob).find_map(|import| match self.path(file, &import.path, depth + 1)?.1 {
            Name::Module(other) if other != module => self.member(&other, name, depth + 1),
            _ => None,
        })
    }
}

/// The groups of files that import each other in a circle, each sorted: strongly connected components of more than one file.
pub fn circles(imports: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let reach: Vec<BTreeSet<usize>> = (0..imports.len()).map(|start| reachable(imports, start)).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for start in 0..imports.len() {
        if reach[start].contains(&start) && !seen.contains(&start) {
            let group: Vec<usize> = reach[start].iter().copied().filter(|other| reach[*other].contains(&start)).collect();
            seen.extend(group.iter().copied());
            found.push(group);
        }
    }
    found
}

/// The files that `start` imports, directly or indirectly.
fn reachable(imports: &[BTreeSet<usize>], start: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut next: Vec<usize> = imports[start].iter().copied().collect();
    while let Some(file) = next.pop() {
        if found.insert(file) {
            next.extend(imports[file].iter().copied());
        }
    }
    found
}

/// The shortest circle through a file: the files on it, without the return to the first.
pub fn shortest_circle(imports: &[BTreeSet<usize>], start: usize) -> Vec<usize> {
    let mut ways = vec![vec![start]];
    let mut seen = BTreeSet::new();
    loop {
        let mut longer = Vec::new();
        for way in &ways {
            for &next in &imports[*way.last().expect("a file")] {
                if next == start {
                    return way.clone();
                }
                if seen.insert(next) {
                    longer.push([way.as_slice(), &[next]].concat());
                }
            }
        }
        assert!(!longer.is_empty(), "the file is on a circle");
        ways = longer;
    }
}

mod tests {
    use super::*;

    fn modules(files: &[(&str, &str)]) -> Modules {
        let leak = |path: &str, text: &str| -> &'static Source { Box::leak(Box::new(Source { path: path.into(), text: text.into() })) };
        let sources = files.iter().map(|(path, text)| (path.to_string(), leak(path, text)));
        let mut found = Vec::new();
        collect(&sources.collect(), "lib.rs", "krate", &mut found);
        Modules::resolve(found)
    }

    fn imports_of(modules: &Modules, path: &str) -> Vec<String> {
        let index = modules.files.iter().position(|file| file.path == path).expect(path);
        modules.imports()[index].iter().map(|&file| modules.files[file].path.clone()).collect()
    }

    #[test]
    fn imports_are_followed_through_re_exports_to_the_file_that_defines_the_item() {
        let found = modules(&[
            ("lib.rs", "pub mod a; pub mod b;"),
            ("a/mod.rs", "mod x;\npub mod y;\npub use x::Thing;\npub use y::*;\npub fn own() {}"),
            ("a/x.rs", "use super::own;\npub struct Thing;"),
            ("a/y.rs", "pub struct Other;"),
            ("b.rs", "use crate::a::{self, Thing};\nfn f() { a::Other; a::own(); }\n#[cfg(test)]\nmod tests { use crate::c; }"),
        ]);
        assert_eq!(imports_of(&found, "b.rs"), ["a/mod.rs", "a/x.rs", "a/y.rs"]);
        assert_eq!(imports_of(&found, "a/x.rs"), ["a/mod.rs"]);
        assert!(imports_of(&found, "a/mod.rs").is_empty(), "a re-export is no import");
        assert!(circles(&found.imports()).is_empty());
        assert!(found.mentions.iter().any(|mention| mention.named == "krate/a" && mention.line == 1));
    }

    #[test]
    fn a_circle_of_three_files_is_found_once() {
        let found = modules(&[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use super::c; pub struct B(c::C);"),
            ("c.rs", "pub struct C(Option<Box<crate::a::A>>);"),
            ("d.rs", "use crate::a::A;"),
        ]);
        let imports = found.imports();
        assert_eq!(circles(&imports).len(), 1);
        let names: Vec<_> = circles(&imports)[0].iter().map(|&file| found.files[file].path.as_str()).collect();
        assert_eq!(names, ["a.rs", "b.rs", "c.rs"]);
        assert_eq!(shortest_circle(&imports, circles(&imports)[0][0]).len(), 3);
    }

    #[test]
    fn a_parent_that_uses_what_it_re_exports_imports_it() {
        let found = modules(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod x;\npub use x::Thing;\npub fn f(thing: Thing) {}"),
            ("a/x.rs", "use super::f;\npub struct Thing;\nfn g() { f(Thing) }"),
        ]);
        assert_eq!(circles(&found.imports()).len(), 1);
    }

    #[test]
    fn a_glob_import_counts_by_the_names_that_are_used() {
        let found = modules(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod x;\nmod y;\nuse y::Y;\npub struct Unused;"),
            ("a/x.rs", "use super::*;\npub struct X(Y);"),
            ("a/y.rs", "pub struct Y;"),
        ]);
        assert_eq!(imports_of(&found, "a/x.rs"), ["a/y.rs"]);
    }
}
