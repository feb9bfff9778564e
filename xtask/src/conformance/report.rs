//! The list and the page.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::outcome::{Item, Outcome};

/// The list that only gets better, and what people read.
pub(super) const LIST: &str = "docs/conformance.json";
pub(super) const PAGE: &str = "docs/conformance.md";

const HEAD: &str = "\
# Conformance

Made by `cargo xtask conformance`, which runs what is below over the library of [preload.md](preload.md); CI runs
`cargo xtask conformance --check --quick`, which fails when something that passed before does not, or when nothing could be
run. What of this it did not run, since there was no network or no root, or since `--quick` leaves it out, it tells by name
and counts as no pass. The same as a list: [conformance.json](conformance.json). What does not pass has its reason from
`crates/elver-preload/conformance.toml`.
";

const NEWER: &str = "\
Programs of Debian 13 (rdma-core 56, perftest 25.01) and of Debian testing, as it was on the day, run with that release's
loader, C library and libmlx5, and are bound as a whole when they start (`LD_BIND_NOW`): no name may be missing.

";

const LARGE: &str = "
## Large programs

Of PyPI and Debian, unmodified, between two processes: `cargo xtask conformance --large` downloads and runs them (needs
root for the namespaces), and writes these rows. What was moved is compared, except by `transfer_engine_bench`, and the
devices' counters must have at least as many bytes: a program that silently takes another way fails. What is measured is
this machine's, beside the same program over its own TCP transport in the same run.

| program | transport | where | comes to | measured | because |
| --- | --- | --- | --- | --- | --- |
";

/// The list as it was written.
pub(super) fn read(list: &Path) -> Result<Vec<Item>> {
    let text = fs::read_to_string(list).with_context(|| format!("{}", list.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}", list.display()))
}

/// Writes the list, and the page that is made of it.
pub(super) fn write(list: &Path, page: &Path, items: &[Item]) -> Result<()> {
    fs::write(list, serde_json::to_string_pretty(items)? + "\n")?;
    fs::write(page, self::page(items)?)?;
    Ok(())
}

fn page(items: &[Item]) -> Result<String> {
    let mut page = HEAD.to_string();
    let (large, items): (Vec<&Item>, Vec<&Item>) = items.iter().partition(|item| item.is_large());
    let (tests, programs): (Vec<&Item>, Vec<&Item>) =
        items.into_iter().partition(|item| item.is_test());
    page.push_str("\n## rdma-core's own tests\n\n");
    writeln!(
        page,
        "The {} tests of rdma-core 44 that are not of one vendor's hardware, and those of mlx5 for DC and CQs, one process \
         each: {} pass, {} fail, {} are skipped.\n",
        tests.len(),
        count(&tests, Outcome::Pass),
        count(&tests, Outcome::Fail),
        count(&tests, Outcome::Skip)
    )?;
    page.push_str("| tests | pass | fail | skip |\n| --- | --- | --- | --- |\n");
    let mut modules: BTreeMap<&str, Vec<&Item>> = BTreeMap::new();
    for test in &tests {
        let module = test.name.split('.').next().unwrap_or_default();
        modules.entry(module).or_default().push(test);
    }
    for (module, tests) in &modules {
        let of = |outcome| count(tests, outcome);
        let (pass, fail, skip) = (of(Outcome::Pass), of(Outcome::Fail), of(Outcome::Skip));
        writeln!(page, "| {module} | {pass} | {fail} | {skip} |")?;
    }
    page.push_str(
        "\nThose that do not pass:\n\n| test | comes to | because |\n| --- | --- | --- |\n",
    );
    for Item { name, outcome, reason, .. } in tests.iter().copied().filter(|test| !test.passes()) {
        writeln!(page, "| {name} | {outcome} | {reason} |")?;
    }
    page.push_str("\n## Programs\n\n");
    writeln!(
        page,
        "Of Debian 12 (rdma-core 44, perftest 4.5, dapl2 2.1, fio 3.33, iperf 2.1, qperf 0.4, UCX 1.13, tgt 1.0, libiscsi 1.19) and, where a row \
         says so, \
         of a newer release, two processes on loopback: {} of {} pass. What \
         those of perftest, fio, iperf, qperf and UCX carried nobody looks at; the examples of libibverbs (`-c`), dapltest (`-V`) and \
         riostream (`-T v`) compare it. Of fio, iperf, dapltest and iscsi-test-cu the device's counters have at least the bytes that they moved. A request of iscsi-test-cu has up to \
         256 blocks, of 512 bytes where the row says nothing else: libiscsi 1.19 [refuses](preload.md#what-runs) more than 256 KiB.\n",
        count(&programs, Outcome::Pass),
        programs.len()
    )?;
    page.push_str(NEWER);
    page.push_str("| program | transport | comes to | because |\n| --- | --- | --- | --- |\n");
    for Item { name, transport, outcome, reason, .. } in programs {
        writeln!(page, "| `{name}` | {transport} | {outcome} | {reason} |")?;
    }
    page.push_str(LARGE);
    for Item { name, transport, place, outcome, measured, reason, .. } in large {
        writeln!(page, "| {name} | {transport} | {place} | {outcome} | {measured} | {reason} |")?;
    }
    Ok(page)
}

fn count(items: &[&Item], outcome: Outcome) -> usize {
    items.iter().filter(|item| item.outcome == outcome).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    /// Of rdma-core's tests, at the least.
    const PASSES_MIN: usize = 150;

    /// The page says what the list says, and what does not pass has a reason; the number of tests that
    /// pass only rises.
    #[test]
    fn the_page_is_made_of_the_list() {
        let items = read(&root().join(LIST)).unwrap();
        let passes = items.iter().filter(|item| item.is_test() && item.passes()).count();
        assert!(passes >= PASSES_MIN, "{passes}");
        assert!(items.iter().all(|item| item.passes() || !item.reason.is_empty()));
        let written = fs::read_to_string(root().join(PAGE)).unwrap();
        assert_eq!(page(&items).unwrap(), written, "cargo xtask conformance writes both");
    }
}
