//! rdma-core's Python tests of release 44, as Debian's `python3-pyverbs` has them: all that are not of one
//! vendor's hardware, and mlx5's of DC and of CQs, each in a process of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};

use super::not_run::Ran;
use super::outcome::{Item, Outcome};
use super::process::Runner;

/// What Debian's package is called, and where it puts things.
const PACKAGE: &str = "python3-pyverbs";
const MODULES: &str = "usr/lib/python3/dist-packages";
const TESTS: &str = "usr/share/doc/rdma-core/tests";
/// The interpreter that the modules were built for: another may stand before it in the path.
const PYTHON: &str = "/usr/bin/python3";
/// Tests of one vendor's hardware, or of a graphics card's.
const VENDORS: [&str; 3] = ["test_mlx5_", "test_efa", "test_cuda_"];
/// Tests of libmlx5's calls that the library has all the same.
const OFFERED: [&str; 2] = ["test_mlx5_dc.", "test_mlx5_cq."];
/// What they ask a device for before they run with it: Mellanox's OUI.
const MELLANOX: (&str, &str) = ("ELVER_VENDOR_ID", "0x02c9");
/// How many tests there are: the floor of what passes is counted of these.
const COUNT: usize = 186;
/// Processes at once: the tests mostly wait for one another.
const WORKERS: usize = 2;
/// Tests whose servers all listen on one port of rdma_cm's: one at a time.
const ONE_PORT: &str = "test_rdmacm.";

/// Runs the tests, where they can be had; those of the list are known without them.
pub(super) fn run(runner: &Runner, scratch: &Path, listed: &[Item]) -> Result<Ran> {
    let modules = match unpacked(scratch) {
        Ok(modules) => modules,
        Err(error) => {
            let tests = listed.iter().filter(|item| item.is_test() && runner.wants(&item.name));
            let names = tests.map(|test| test.name.clone()).collect();
            return Ok(Ran::none(names, format!("{error:#}")));
        }
    };
    let environment = [
        ("PYTHONPATH", modules.to_str().context("a path of UTF-8")?),
        ("PYTHONDONTWRITEBYTECODE", "1"),
    ];
    let mut names = names(runner, scratch, &environment)?;
    names.retain(|name| runner.wants(name));
    let (next, items, port) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(()));
    let work = || -> Result<()> {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let words = [PYTHON, "tests/run_tests.py", "--verbose", name];
            let mut environment = environment.to_vec();
            environment.extend(is_offered(name).then_some(MELLANOX));
            let _turn = name
                .starts_with(ONE_PORT)
                .then(|| port.lock().unwrap_or_else(PoisonError::into_inner));
            let ended = runner.alone(&words, scratch, &environment)?;
            let (outcome, said) = judged(&ended.said, ended.status.success());
            let item = Item::new(name.clone(), outcome, said);
            items.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(item);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("it returns errors"))
    })?;
    let mut items = items.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    items.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Ran::of(items))
}

fn is_offered(name: &str) -> bool {
    OFFERED.iter().any(|offered| name.starts_with(offered))
}

/// The names of all tests, as the runner takes them.
fn names(runner: &Runner, at: &Path, environment: &[(&str, &str)]) -> Result<Vec<String>> {
    let words = [PYTHON, "tests/run_tests.py", "--list-tests"];
    let ended = runner.alone(&words, at, environment)?;
    ensure!(ended.status.success(), "the tests cannot be listed:\n{}", ended.said);
    let listed = ended.said.lines().filter_map(|line| line.strip_prefix("tests."));
    let mut names: Vec<String> = listed.map(str::to_string).collect();
    names.sort();
    names.dedup();
    ensure!(names.len() == COUNT, "{} tests are listed, and {COUNT} were expected", names.len());
    Ok(names)
}

/// Puts the tests and their modules below a folder; returns where the modules are.
fn unpacked(scratch: &Path) -> Result<PathBuf> {
    if scratch.exists() {
        fs::remove_dir_all(scratch)?;
    }
    let tests = scratch.join("tests");
    fs::create_dir_all(&tests).with_context(|| format!("{}", tests.display()))?;
    let mut root = PathBuf::from("/");
    // Small systems are installed without documentation.
    if !root.join(TESTS).is_dir() || !root.join(MODULES).join("pyverbs").is_dir() {
        root = scratch.join("package");
        download(scratch, &root)?;
    }
    for file in fs::read_dir(root.join(TESTS))? {
        let file = file?.path();
        let name = file.file_name().and_then(|name| name.to_str()).context("a name of UTF-8")?;
        if VENDORS.iter().any(|vendor| name.starts_with(vendor)) && !is_offered(name) {
            continue;
        }
        let to = tests.join(name.trim_end_matches(".gz"));
        if name.ends_with(".gz") {
            let plain = Command::new("gzip").arg("-dc").arg(&file).output()?;
            ensure!(plain.status.success(), "gzip -dc {}: {}", file.display(), plain.status);
            fs::write(&to, plain.stdout)?;
        } else {
            fs::copy(&file, &to)?;
        }
    }
    Ok(root.join(MODULES))
}

/// Takes the package from Debian, which signs it, and unpacks it.
fn download(scratch: &Path, to: &Path) -> Result<()> {
    let got = Command::new("apt-get").args(["download", PACKAGE]).current_dir(scratch).status()?;
    ensure!(got.success(), "apt-get download {PACKAGE} failed; apt-get update may help");
    let is_package = |path: &PathBuf| path.extension().is_some_and(|end| end == "deb");
    let mut files = fs::read_dir(scratch)?.filter_map(|file| Some(file.ok()?.path()));
    let package = files.find(is_package).context("apt-get download left no package")?;
    let unpacked = Command::new("dpkg-deb").arg("-x").arg(&package).arg(to).status()?;
    ensure!(unpacked.success(), "dpkg-deb -x {} failed", package.display());
    Ok(())
}

/// What unittest's last line says, and of what did not pass why.
fn judged(said: &str, succeeded: bool) -> (Outcome, String) {
    let verdict =
        said.lines().rev().find(|line| line.starts_with("OK") || line.starts_with("FAILED"));
    match verdict {
        Some("OK") if succeeded => (Outcome::Pass, String::new()),
        Some(line) if line.starts_with("OK (skipped") && succeeded => {
            let why = said.lines().find_map(|line| line.split_once("skipped ")).map(|(_, why)| why);
            (Outcome::Skip, why.unwrap_or_default().trim_matches(['\'', '"']).to_string())
        }
        _ => {
            let error = |line: &&str| !line.starts_with(' ') && line.contains("Error");
            let last = said.lines().rev().find(error).or(said.lines().last());
            (Outcome::Fail, last.unwrap_or("it said nothing").to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_says_how_it_ended() {
        let passed = "test_a (tests.x) ... ok\n\n---\nRan 1 test in 0.1s\n\nOK\n";
        assert_eq!(judged(passed, true), (Outcome::Pass, String::new()));
        let skipped = "test_a ... skipped 'XRC is not there'\n\nRan 1 test\n\nOK (skipped=1)\n";
        assert_eq!(judged(skipped, true), (Outcome::Skip, "XRC is not there".to_string()));
        let failed = "Traceback\n  File x\nAssertionError: 1 != 2\n\nFAILED (failures=1)\n";
        assert_eq!(judged(failed, false), (Outcome::Fail, "AssertionError: 1 != 2".to_string()));
    }

    /// A process that crashes after its test, or is ended, has not passed.
    #[test]
    fn a_status_counts_too() {
        assert_eq!(judged("OK\n", false).0, Outcome::Fail);
        assert_eq!(judged("test_a ... ", true).0, Outcome::Fail);
        assert_eq!(judged("", false), (Outcome::Fail, "it said nothing".to_string()));
    }
}
