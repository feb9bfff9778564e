//! Rows that were not run, and why: they are told by name, and are no passes.

use std::fmt;

use anyhow::{Result, ensure};

use super::outcome::Item;

/// Why a row of the list was not run that nothing is said of.
pub(super) const NOTHING: &str = "nothing runs them any more";

/// What was run, and what could not be.
#[derive(Default)]
pub(super) struct Ran {
    pub(super) items: Vec<Item>,
    pub(super) not_run: Vec<NotRun>,
}

/// Rows by their names, and why they could not be run.
#[derive(Clone)]
pub(super) struct NotRun {
    pub(super) names: Vec<String>,
    pub(super) why: String,
}

impl Ran {
    pub(super) fn of(items: Vec<Item>) -> Ran {
        Ran { items, not_run: Vec::new() }
    }

    /// None of these, which may be none.
    pub(super) fn none(names: Vec<String>, why: String) -> Ran {
        let not_run = NotRun { names, why };
        Ran {
            items: Vec::new(),
            not_run: Vec::from_iter(Some(not_run).filter(|not_run| !not_run.names.is_empty())),
        }
    }

    pub(super) fn add(&mut self, more: Ran) {
        self.items.extend(more.items);
        self.not_run.extend(more.not_run);
    }

    /// Whether that says something: who only compares may go without some rows, and who writes the list has to run all.
    pub(super) fn is_enough(&self, check: bool) -> Result<()> {
        if let Some(NotRun { names, why }) = self.not_run.first() {
            let rest = names.len() - 1;
            ensure!(
                check,
                "{} and {rest} more cannot be run, and would be missing in the list: {why}",
                names[0]
            );
            ensure!(!self.items.is_empty(), "nothing could be run: {why}");
        }
        ensure!(!self.items.is_empty(), "nothing has such a name");
        Ok(())
    }

    /// Whether the list has no row that nothing runs any more.
    pub(super) fn all_there(&self, asked: &[Item]) -> Result<()> {
        let mut left = self.all_not_run(asked, NOTHING).split_off(self.not_run.len());
        let stale = left.pop().map(|rows| rows.names).unwrap_or_default();
        ensure!(
            stale.is_empty(),
            "{NOTHING}, and the list has them: write it anew:\n{}",
            stale.join("\n")
        );
        Ok(())
    }

    /// All rows that were not run: those that could not be, and what else the list has of what was asked for, of which
    /// `otherwise` says why.
    pub(super) fn all_not_run(&self, asked: &[Item], otherwise: &str) -> Vec<NotRun> {
        let is_told = |item: &Item| {
            let named = |not_run: &NotRun| not_run.names.contains(&item.name);
            self.items.iter().any(|ran| ran.is(item)) || self.not_run.iter().any(named)
        };
        let names = asked.iter().filter(|item| !is_told(item)).map(|item| {
            let place = if item.is_large() { format!(", {}", item.place) } else { String::new() };
            format!("{}{place}", item.name)
        });
        let left_out = Ran::none(names.collect(), otherwise.to_string());
        self.not_run.iter().cloned().chain(left_out.not_run).collect()
    }
}

/// Why once, and then each by its name.
impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not run, because {}:", self.why.trim_end())?;
        self.names.iter().try_for_each(|name| write!(f, "\nnot run: {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::Outcome;
    use super::*;

    fn item(name: &str, place: &str) -> Item {
        let item = Item::new(name.to_string(), Outcome::Pass, String::new());
        Item { place: place.to_string(), ..item }
    }

    #[test]
    fn each_row_that_was_not_run_is_told_by_name_and_once() {
        let mut ran = Ran::of(vec![item("test_a", "")]);
        ran.add(Ran::none(vec!["rping (Debian 13)".into(), "new".into()], "no network".into()));
        let list =
            ["test_a", "rping (Debian 13)", "ib_read_lat -a -n 20"].map(|name| item(name, ""));
        assert_eq!(ran.items.len(), 1, "only that can have passed");
        let not_run = ran.all_not_run(&list, "--quick leaves them out");
        assert_eq!(
            not_run.iter().map(NotRun::to_string).collect::<Vec<_>>(),
            [
                "not run, because no network:\nnot run: rping (Debian 13)\nnot run: new",
                "not run, because --quick leaves them out:\nnot run: ib_read_lat -a -n 20"
            ]
        );
    }

    #[test]
    fn a_row_that_nothing_runs_is_told() {
        let mut ran = Ran::of(vec![item("test_a", "")]);
        ran.add(Ran::none(vec!["rping (Debian 13)".into()], "no network".into()));
        let mut list = vec![item("test_a", ""), item("rping (Debian 13)", "")];
        ran.all_there(&list).unwrap();
        list.push(item("fio as it was run once", ""));
        let error = ran.all_there(&list).unwrap_err().to_string();
        assert!(error.ends_with("write it anew:\nfio as it was run once"), "{error}");
    }

    #[test]
    fn only_who_compares_goes_without_rows_and_not_without_all() {
        let none = || Ran::none(vec!["a".into(), "b".into()], "no network".into());
        let mut some = Ran::of(vec![item("c", "")]);
        some.is_enough(false).unwrap();
        some.add(none());
        some.is_enough(true).unwrap();
        let error = some.is_enough(false).unwrap_err().to_string();
        assert!(error.starts_with("a and 1 more cannot be run"), "{error}");
        assert_eq!(
            none().is_enough(true).unwrap_err().to_string(),
            "nothing could be run: no network"
        );
        let nothing = Ran::default().is_enough(true).unwrap_err().to_string();
        assert_eq!(nothing, "nothing has such a name");
    }

    #[test]
    fn a_large_program_is_told_with_its_place() {
        let ran = Ran::of(vec![item("QEMU", "one host")]);
        let list = [item("QEMU", "one host"), item("QEMU", "two namespaces")];
        let not_run = ran.all_not_run(&list, "nothing runs it");
        assert_eq!(not_run.len(), 1);
        assert_eq!(not_run[0].names, ["QEMU, two namespaces"]);
    }
}
