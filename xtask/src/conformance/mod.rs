//! `cargo xtask conformance`: rdma-core's own Python tests, and Debian's programs, of this release and of newer ones,
//! over the library that `cargo xtask preload` makes. The result stands in `docs/conformance.md` and `docs/conformance.json`;
//! `--check` compares with it, writes nothing, and fails when something that passed does not any more, as does who writes
//! the list without `--fewer`. `--only TEXT` runs those whose names have that text, and leaves all other rows as they are.
//! `--large` runs large programs instead, which it downloads, or with `--only` some of them.

mod apart;
mod counted;
mod disks;
mod large;
mod newer;
mod not_run;
mod outcome;
mod place;
mod process;
mod programs;
mod reasons;
mod report;
mod small;
mod suite;

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::metadata::{metadata, text};
use not_run::{NOTHING, Ran};
use outcome::Item;
use process::Runner;
use reasons::{REASONS, Reasons};
use report::{LIST, PAGE};

/// Runs all but the large programs, or with `--quick` what takes a minute or two, or with `--large` those; and writes
/// what came out, or with `--check` compares.
pub(crate) fn run(arguments: &[String]) -> Result<String> {
    let known = ["--check", "--quick", "--large", "--fewer", "--only TEXT"];
    let (arguments, only) = without_only(arguments)?;
    if let Some(unknown) = arguments.iter().find(|word| !known.contains(&word.as_str())) {
        bail!("{unknown} is no option of conformance: {}", known.join(", "));
    }
    let has = |option: &str| arguments.iter().any(|word| word == option);
    let (check, quick, large) = (has("--check"), has("--quick"), has("--large"));
    let fewer = has("--fewer");
    let partly = quick && only.is_none();
    ensure!(
        check || !partly,
        "--quick runs a part, which can be checked, not written: add --check"
    );
    ensure!(!(quick && large), "--quick and --large run different parts");
    ensure!(!(check && fewer), "--fewer writes that less passes, and --check writes nothing");
    let metadata = metadata(&["--no-deps"])?;
    let root = PathBuf::from(text(&metadata, "workspace_root")?);
    let target = PathBuf::from(text(&metadata, "target_directory")?);
    let runner = Runner::new(&target, only)?;
    let reasons = Reasons::read(&root.join(REASONS))?;
    let before = report::read(&root.join(LIST))?;

    let mut ran = if large {
        Ran::of(large::run(&runner, &root, &target.join("conformance-large"))?)
    } else {
        let scratch = target.join("conformance");
        let mut ran = suite::run(&runner, &scratch, &before)?;
        ran.items.extend(programs::run(&runner, &scratch, quick)?);
        ran.add(small::run(&runner, &scratch)?);
        ran.add(disks::run(&runner, &scratch)?);
        ran.add(newer::run(&runner, &scratch, quick)?);
        ran.add(apart::run(&runner)?);
        ran
    };
    for item in &mut ran.items {
        item.reason = reasons.of(item);
    }
    let is_asked = |item: &&Item| item.is_large() == large && runner.wants(&item.name);
    let asked: Vec<Item> = before.iter().filter(is_asked).cloned().collect();
    let said = summary(&ran, &asked, quick);
    ran.is_enough(check)?;
    if check && !quick {
        ran.all_there(&asked)?;
    }
    let items = ran.items;
    without_reason(&items)?;
    if !fewer {
        worse(&before, &items)?;
    }
    if check {
        return Ok(format!("{said}, and nothing that passed before fails"));
    }
    // What was not run stays as it was, and stands where it stood.
    let all: Vec<Item> = if runner.runs_all() {
        let kept = before.into_iter().filter(|item| item.is_large() != large);
        if large { kept.chain(items).collect() } else { items.into_iter().chain(kept).collect() }
    } else {
        put(before, items)
    };
    if !large && runner.runs_all() {
        // Of what others wrote since the list was made, some may not be in it yet.
        reasons.all_used(&all)?;
    }
    report::write(&root.join(LIST), &root.join(PAGE), &all)
        .with_context(|| format!("cannot write {LIST} and {PAGE}"))?;
    Ok(format!("{said}: {PAGE}"))
}

/// Tells of each row that does not pass, and of each that was not run; returns how many pass.
fn summary(ran: &Ran, asked: &[Item], quick: bool) -> String {
    for item in ran.items.iter().filter(|item| !item.passes()) {
        println!("{} {}: {}", item.outcome, item.name, item.said);
    }
    let otherwise = if quick { "--quick leaves them out" } else { NOTHING };
    let not_run = ran.all_not_run(asked, otherwise);
    for rows in &not_run {
        println!("{rows}");
    }
    let not_run: usize = not_run.iter().map(|rows| rows.names.len()).sum();
    let passed = ran.items.iter().filter(|item| item.passes()).count();
    let said = format!("{passed} of {} pass", ran.items.len());
    if not_run == 0 { said } else { format!("{said}, {not_run} were not run") }
}

/// The options without `--only` and its text, and that.
fn without_only(arguments: &[String]) -> Result<(Vec<String>, Option<String>)> {
    let mut others = Vec::new();
    let mut only = None;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if word == "--only" {
            let text =
                words.next().context("--only needs a part of a name, test_rdmacm for instance")?;
            only = Some(text.clone());
        } else {
            others.push(word.clone());
        }
    }
    Ok((others, only))
}

/// The list with some rows renewed; those that are new stand behind all of their kind.
fn put(mut all: Vec<Item>, renewed: Vec<Item>) -> Vec<Item> {
    for item in renewed {
        if let Some(old) = all.iter_mut().find(|old| old.is(&item)) {
            *old = item;
        } else {
            let kind = (item.is_test(), item.is_large());
            let last = all.iter().rposition(|old| (old.is_test(), old.is_large()) == kind);
            all.insert(last.map_or(0, |last| last + 1), item);
        }
    }
    all
}

fn without_reason(items: &[Item]) -> Result<()> {
    let bare: Vec<String> = items
        .iter()
        .filter(|item| !item.passes() && item.reason.is_empty())
        .map(|item| format!("{} ({}): {}", item.name, item.outcome, item.said))
        .collect();
    ensure!(bare.is_empty(), "without a reason in {REASONS}:\n{}", bare.join("\n"));
    Ok(())
}

/// What passed before must pass, among what was run now.
fn worse(before: &[Item], now: &[Item]) -> Result<()> {
    let lost: Vec<String> = now
        .iter()
        .filter(|item| !item.passes())
        .filter(|item| before.iter().any(|old| old.is(item) && old.passes()))
        .map(|item| format!("{} ({}): {}", item.name, item.outcome, item.said))
        .collect();
    ensure!(
        lost.is_empty(),
        "passed before, and does not now (to write that, --fewer):\n{}",
        lost.join("\n")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::outcome::Outcome;
    use super::*;

    fn item(name: &str, outcome: Outcome) -> Item {
        Item { outcome, ..Item::new(name.to_string(), outcome, String::new()) }
    }

    #[test]
    fn only_what_passed_before_is_asked_for() {
        let before = [item("a", Outcome::Pass), item("b", Outcome::Fail), item("c", Outcome::Pass)];
        let now = [item("a", Outcome::Pass), item("b", Outcome::Fail), item("d", Outcome::Skip)];
        worse(&before, &now).unwrap();
        let error = worse(&before, &[item("c", Outcome::Skip)]).unwrap_err();
        assert!(error.to_string().contains("c (skip)"), "{error}");
    }

    #[test]
    fn rows_are_renewed_in_their_places() {
        let before = ["test_a", "test_b", "rping"].map(|name| item(name, Outcome::Fail)).to_vec();
        let renewed = ["test_b", "test_c", "udpong"].map(|name| item(name, Outcome::Pass)).to_vec();
        let all = put(before, renewed);
        let names: Vec<&str> = all.iter().map(|item| item.name.as_str()).collect();
        assert_eq!(names, ["test_a", "test_b", "test_c", "rping", "udpong"]);
        assert!(!all[0].passes() && all[1].passes());
    }

    #[test]
    fn a_part_of_a_name_is_asked_for() {
        let words = ["--check", "--only", "rping -c"].map(str::to_string);
        let (others, only) = without_only(&words).unwrap();
        assert_eq!((others, only), (vec!["--check".to_string()], Some("rping -c".to_string())));
        assert!(without_only(&["--only".to_string()]).is_err());
    }

    #[test]
    fn a_failure_needs_a_reason() {
        let mut one = item("a", Outcome::Fail);
        assert!(without_reason(&[one.clone()]).is_err());
        one.reason = "no such hardware".into();
        without_reason(&[one, item("b", Outcome::Pass)]).unwrap();
    }
}
