//! The rule for files: within a crate no files import one another in a circle, so that each can be
//! read, and moved, with those below it alone. What is seen are paths: `use`, and `a::b` elsewhere.
//! A file that declares a module does not import it by that; one that re-exports from it does, and whoever
//! imports such a name imports it from where it stands. Files that share a type's methods must not call
//! one another in a circle either, as far as that can be seen: on `self`.

mod calls;
mod graph;
mod modules;
mod names;
mod paths;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::calls::Calls;
use self::names::Names;
use crate::metadata::{list, metadata, text};

/// Checks all crates of the house; says how many it found.
pub(crate) fn check(arguments: &[String]) -> Result<String> {
    ensure!(arguments.is_empty(), "circles takes no arguments");
    let metadata = metadata(&["--no-deps"])?;
    let (mut wrong, mut crates, mut files) = (String::new(), 0, 0);
    for package in list(&metadata, "packages")? {
        let mut told = String::new();
        for target in list(package, "targets")? {
            // Programs that test, those that build, and examples are a file each.
            let kinds = list(target, "kind")?;
            let tells =
                |kind: &str| matches!(kind, "lib" | "rlib" | "cdylib" | "staticlib" | "bin");
            if !kinds.iter().filter_map(|kind| kind.as_str()).any(tells) {
                continue;
            }
            let root = PathBuf::from(text(target, "src_path")?);
            let (imports, calls) = arrows(&root, &|path| std::fs::read_to_string(path).ok())?;
            files += imports.len();
            let directory = root.parent().unwrap_or(Path::new(""));
            told += &circles_in("import", &imports, directory);
            told += &circles_in("call", &calls, directory);
        }
        crates += 1;
        if !told.is_empty() {
            wrong += &format!("{}:\n{told}", text(package, "name")?);
        }
    }
    ensure!(wrong.is_empty(), "files must not import or call one another in a circle:\n{wrong}");
    Ok(format!("no circle among the files of {crates} crates, {files} in all"))
}

/// To which files each file leads.
type Arrows = BTreeMap<PathBuf, Vec<PathBuf>>;

/// What the files of a crate import from, and whose methods they call, from its root on. `read` gives what
/// stands in a file, if it is there.
fn arrows(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<(Arrows, Arrows)> {
    let modules = modules::modules(root, read)?;
    let mut sources = BTreeMap::new();
    for module in modules.values().filter(|module| !module.inline) {
        let source = read(&module.file).with_context(|| format!("{}", module.file.display()))?;
        sources.insert(module.name.clone(), source);
    }
    let names = Names::of(&modules, &sources)?;
    let (mut imports, mut calls) = (Arrows::new(), Calls::default());
    for (name, source) in &sources {
        let module = &modules[name];
        let of = imports.entry(module.file.clone()).or_default();
        for path in paths::of(source, module, &modules, &names)? {
            let target = &modules[&path].file;
            if *target != module.file && !of.contains(target) {
                of.push(target.clone());
            }
        }
        calls.read(&module.file, source)?;
    }
    Ok((imports, calls.arrows()))
}

/// A line for each circle of a target whose files are below a directory.
fn circles_in(how: &str, arrows: &Arrows, directory: &Path) -> String {
    let name = |file: &PathBuf| file.strip_prefix(directory).unwrap_or(file).display().to_string();
    let told = |circle: Vec<PathBuf>| {
        let names: Vec<String> = circle.iter().map(name).collect();
        format!("  {} files that {how} one another: {}\n", names.len(), names.join(", "))
    };
    graph::circles(arrows).into_iter().map(told).collect()
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
        graph::circles(&arrows(Path::new("lib.rs"), &read).unwrap().0)
    }

    /// The same, of calls.
    fn calls(files: &[(&str, &str)]) -> Vec<Vec<PathBuf>> {
        let read = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, source)| source.to_string())
        };
        graph::circles(&arrows(Path::new("lib.rs"), &read).unwrap().1)
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

    /// Whoever imports by a name of the root's counted as importing the root, and that all of its files.
    #[test]
    fn a_name_that_is_passed_on_is_imported_from_where_it_stands() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; pub use a::{A, inner::B as C}; pub(crate) use c::f;"),
            ("a.rs", "pub mod inner { pub struct B; } pub struct A;"),
            ("b.rs", "use crate::{A, C}; fn g() { crate::f(); }"),
            ("c.rs", "pub fn f() {}"),
        ];
        assert!(circles(&files).is_empty());
        let mut files = files;
        files[3].1 = "use crate::b; pub fn f() { b::g() }";
        assert_eq!(circles(&files), paths(&["b.rs", "c.rs"]));
        // What stood behind the last comma counted as all that the root has.
        files[3].1 = "pub fn f() {}";
        files[2].1 = "use crate::{A, C,}; fn g() { crate::f(); }";
        assert!(circles(&files).is_empty());
    }

    #[test]
    fn files_of_a_type_that_call_one_another_are_a_circle() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; pub struct S<T>(T);"),
            ("a.rs", "impl<T: Into<u8>> crate::S<T> { fn a(&mut self) { if true { self.b(1) } } }"),
            (
                "b.rs",
                "impl<T> crate::S<T> where T: Copy { fn b(&self, n: u8) { vec![Self::c(n)]; } }",
            ),
            (
                "c.rs",
                "impl<T> crate::S<T> { fn c(n: u8) {} } impl Clone for X { fn a(&self) { self.b() } }",
            ),
        ];
        assert!(calls(&files).is_empty());
        let mut files = files;
        files[3].1 = "impl<T> crate::S<T> { fn c(&self) { self.x.map(|_| self.a()) } }";
        assert_eq!(calls(&files), paths(&["a.rs", "b.rs", "c.rs"]));
        // Another type's method of that name, a field, and what stands in tests.
        files[3].1 = "struct O; impl O { fn a(&self) {} fn c(&self) { self.a() } } \
                      mod tests { impl<T> crate::S<T> { fn c(&self) { self.a() } } }";
        assert!(calls(&files).is_empty());
    }
}
