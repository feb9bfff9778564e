//! Every input that the fuzzer kept, through its target, as an ordinary test: what once led somewhere
//! leads to no harm there. An input that broke something belongs into its corpus when that is mended.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A corpus of fewer inputs was lost on its way here.
const INPUTS_MIN: usize = 10;

fn below(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = std::fs::read_dir(&folder);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn runs(target: &str, run: fn(&[u8])) {
    let inputs = below(&format!("corpora/{target}"));
    assert!(inputs.len() >= INPUTS_MIN, "{} inputs of {target}", inputs.len());
    for input in inputs {
        // The last one that is named is the one that fails.
        println!("{}", input.display());
        run(&std::fs::read(&input).unwrap());
    }
}

macro_rules! targets {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            runs(stringify!($name), elver_fuzz::$name::run);
        })*

        /// A target whose corpus nobody runs is one that nobody remembers.
        #[test]
        fn every_target_and_every_corpus_is_run() {
            let run = BTreeSet::from([$(stringify!($name).to_string()),*]);
            for folder in ["targets", "corpora"] {
                let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_string();
                assert_eq!(below(folder).into_iter().map(name).collect::<BTreeSet<_>>(), run);
            }
        }
    };
}

targets! { wire, verbs, frames, control, core, portal, gate, ring, rpc, msg, cm, hostcache, direct }
