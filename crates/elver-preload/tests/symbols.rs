//! What programs and providers of each release of rdma-core bind to: names, in the versions that they ask for.

#[allow(dead_code, reason = "no program is run here")]
mod common;

use std::collections::BTreeSet;
use std::process::Command;

use common::{library, succeeded};

/// What the library says of itself.
fn dump() -> String {
    let library = library().join("libibverbs.so.1");
    succeeded("objdump", &Command::new("objdump").arg("-pT").arg(library).output().unwrap())
}

/// Each symbol that the library has, and its version: in parentheses where it is not the default one.
fn exported(dump: &str) -> BTreeSet<(&str, &str)> {
    let rows = dump.lines().filter_map(|line| {
        let mut words = line.split_whitespace().rev();
        words.next().zip(words.next())
    });
    rows.map(|(name, version)| (name, version.trim_matches(['(', ')']))).collect()
}

/// Each symbol of the version script is there, in its version, and the library has its name.
#[test]
fn symbols_have_their_versions() {
    let dump = dump();
    let soname = |line: &str| line.split_whitespace().eq(["SONAME", "libibverbs.so.1"]);
    assert!(dump.lines().any(soname), "{dump}");
    let exported = exported(&dump);
    let mut version = "";
    let mut count = 0;
    for line in include_str!("../libibverbs.map").lines().map(str::trim) {
        if let Some(name) = line.strip_suffix('{').and_then(|line| line.split(' ').next()) {
            version = name;
        } else if let Some(symbol) = line.strip_suffix(';')
            && ["ibv", "verbs", "mlx5dv"].iter().any(|part| symbol.contains(part))
        {
            assert!(exported.contains(&(symbol, version)), "no {symbol}@@{version}");
            count += 1;
        }
    }
    assert!(count > 270, "the version script has {count} symbols");
}

/// libmlx5 and libefa, to which perftest is linked, are bound as a whole when they are loaded: one name that is
/// missing is the end of the program.
#[test]
fn each_release_finds_its_private_names() {
    let dump = dump();
    let exported = exported(&dump);
    let mut names = BTreeSet::new();
    let (mut release, mut node) = ("", "");
    let mut releases = 0;
    let check = |release: &str, node: &str, names: &BTreeSet<&str>| {
        for name in names {
            assert!(exported.contains(&(*name, node)), "rdma-core {release}: no {name}@{node}");
        }
    };
    for line in include_str!("symbols/private.txt").lines() {
        match (line.get(..1), line.get(1..)) {
            (Some("#"), _) => {}
            (Some("+"), Some(name)) => assert!(names.insert(name), "{line}"),
            (Some("-"), Some(name)) => assert!(names.remove(name), "{line}"),
            _ => {
                check(release, node, &names);
                let mut words = line.split(' ').skip(1);
                (release, node) = words.next().zip(words.next()).unwrap();
                releases += 1;
            }
        }
    }
    check(release, node, &names);
    assert_eq!((releases, release, names.len()), (8, "65", 92));
}
