//! The rule for files: within a crate no files import one another in a circle, so that each can be
//! read, and moved, with those below it alone. What is seen are paths: `use`, and `a::b` elsewhere.
//! A file that declares a module does not import it by that; one that re-exports from it does.

mod graph;
mod paths;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::{list, metadata, text};

/// Crates whose files still have circles, most of them since files import by the names that the root
/// re-exports, which counts as importing the root. One that has none any more leaves this list.
const STILL: [&str; 15] = [
    "elver",
    "elver-bench",
    "elver-core",
    "elver-kv",
    "elver-memory",
    "elver-node",
    "elver-nodesim",
    "elver-portal",
    "elver-rnic",
    "elver-sim",
    "elver-soft",
    "elver-verbs",
    "elver-wire",
    "elverd",
    "xtask",
];

/// Checks all crates of the house; says what it found.
pub(crate) fn check() -> Result<String> {
    let metadata = metadata(&["--no-deps"])?;
    let (mut wrong, mut right, mut files) = (String::new(), 0, 0);
    for package in list(&metadata, "packages")? {
        let name = text(package, "name")?;
        let mut circles = String::new();
        for target in list(package, "targets")? {
            // Programs that test, those that build, and examples are a file each.
            let kinds = list(target, "kind")?;
            if !kinds.iter().any(|kind| matches!(kind.as_str(), Some("lib" | "bin"))) {
                continue;
            }
            let root = PathBuf::from(text(target, "src_path")?);
            let imports = imports(&root, &|path| std::fs::read_to_string(path).ok())?;
            files += imports.len();
            let directory = root.parent().unwrap_or(Path::new(""));
            for circle in graph::circles(&imports) {
                circles.push_str(&told(&circle, directory));
            }
        }
        match (circles.is_empty(), STILL.contains(&name)) {
            (true, false) => right += 1,
            (false, true) => {}
            (true, true) => wrong += &format!("{name} has no circle any more: take it off STILL\n"),
            (false, false) => wrong += &format!("{name}:\n{circles}"),
        }
    }
    ensure!(wrong.is_empty(), "files must not import one another in a circle:\n{wrong}");
    let still =
        if STILL.is_empty() { String::new() } else { format!("; still: {}", STILL.join(", ")) };
    Ok(format!("{right} crates have no circle among their files, of {files} in all{still}"))
}

/// Which files each file imports from.
type Imports = BTreeMap<PathBuf, Vec<PathBuf>>;

/// The files of a crate from its root on. `read` gives what stands in a file, if it is there.
fn imports(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Imports> {
    let modules = paths::modules(root, read)?;
    let mut imports = Imports::new();
    for module in modules.values() {
        let source = read(&module.file).with_context(|| format!("{}", module.file.display()))?;
        let of = imports.entry(module.file.clone()).or_default();
        if module.inline {
            continue;
        }
        for path in paths::of(&source, module, &modules)? {
            let target = &modules[&path].file;
            if *target != module.file && !of.contains(target) {
                of.push(target.clone());
            }
        }
    }
    Ok(imports)
}

/// The files of a circle, a line each, below a directory.
fn told(circle: &[PathBuf], directory: &Path) -> String {
    let name = |file: &PathBuf| file.strip_prefix(directory).unwrap_or(file).display().to_string();
    let names: Vec<String> = circle.iter().map(name).collect();
    format!("  {} files: {}\n", names.len(), names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circles of a crate whose files are these.
    fn circles(files: &[(&str, &str)]) -> Vec<Vec<PathBuf>> {
        let read = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, source)| source.to_string())
        };
        graph::circles(&imports(Path::new("lib.rs"), &read).unwrap())
    }

    fn paths(names: &[&str]) -> Vec<Vec<PathBuf>> {
        vec![names.iter().map(PathBuf::from).collect()]
    }

    #[test]
    fn down_is_right() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::A;"),
            ("a.rs", "use crate::b::{B, C}; use std::fmt; struct A;"),
            ("b.rs", "/// [`crate::A`]\npub(crate) struct B; // crate::a::A\n"),
        ];
        assert_eq!(circles(&files), Vec::<Vec<PathBuf>>::new());
    }

    #[test]
    fn a_parent_and_its_child_are_a_circle() {
        let files = [
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod b; use b::B; pub struct A;"),
            ("a/b.rs", "use super::A; pub struct B;"),
        ];
        assert_eq!(circles(&files), paths(&["a/b.rs", "a/mod.rs"]));
        // A module that is only declared is not imported.
        let files = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod b; pub struct A;"),
            ("a/b.rs", "use crate::a::A;"),
        ];
        assert!(circles(&files).is_empty());
    }

    /// A check of `use` alone would have missed the second of these.
    #[test]
    fn paths_in_code_and_in_macros_count() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::{b::{self, B}};"),
            ("b.rs", "fn f() { crate::c::g(); }"),
            (
                "c.rs",
                "fn g() { println!(\"{}\", crate::a::X); } mod tests { use super::*; use super::super::a; }",
            ),
        ];
        assert_eq!(circles(&files), paths(&["a.rs", "b.rs", "c.rs"]));
    }

    #[test]
    fn what_only_looks_like_a_path_does_not() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::A;"),
            ("a.rs", "macro_rules! m { () => { $crate::b::B } } pub(in crate::b) struct A;"),
            ("b.rs", "use crate::a::A; fn f() { let a = A::a::<u8>(); }"),
        ];
        assert!(circles(&files).is_empty());
    }
}
