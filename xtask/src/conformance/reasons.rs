//! Why what does not pass does not, as somebody wrote it down.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::outcome::{Item, Outcome};

/// Where they are.
pub(super) const REASONS: &str = "crates/elver-preload/conformance.toml";

/// The file with the reasons.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reasons {
    reason: Vec<Reason>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reason {
    /// A sentence that names what is missing.
    why: String,
    /// Beginnings of the names that it holds for.
    of: Vec<String>,
    /// How they end.
    outcome: Outcome,
}

impl Reasons {
    pub(super) fn read(path: &Path) -> Result<Reasons> {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{}", path.display()))
    }

    /// The reason for what an item came to; nothing if it passes, or if nobody wrote one.
    pub(super) fn of(&self, item: &Item) -> String {
        if item.passes() {
            return String::new();
        }
        let fits = |reason: &&Reason| {
            let of = |name: &String| item.name.starts_with(name);
            reason.outcome == item.outcome && reason.of.iter().any(of)
        };
        self.reason.iter().find(fits).map(|reason| reason.why.clone()).unwrap_or_default()
    }

    /// No reason may outlive what it was written for.
    pub(super) fn all_used(&self, items: &[Item]) -> Result<()> {
        for name in self.reason.iter().flat_map(|reason| &reason.of) {
            let used = |item: &Item| !item.passes() && item.name.starts_with(name);
            ensure!(
                items.iter().any(used),
                "nothing fails or is skipped any more that begins {name}"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str, outcome: Outcome) -> Item {
        Item::new(name.into(), outcome, String::new())
    }

    #[test]
    fn a_reason_holds_for_its_names_and_its_outcome() {
        let text = "[[reason]]\nwhy = 'no raw packets'\noutcome = 'skip'\nof = ['test_flow.']\n";
        let reasons: Reasons = toml::from_str(text).unwrap();
        let skipped = item("test_flow.A.b", Outcome::Skip);
        assert_eq!(reasons.of(&skipped), "no raw packets");
        assert!(reasons.of(&item("test_flow.A.b", Outcome::Fail)).is_empty());
        assert!(reasons.of(&item("test_mr.A.b", Outcome::Skip)).is_empty());
        reasons.all_used(&[skipped]).unwrap();
        assert!(reasons.all_used(&[item("test_flow.A.b", Outcome::Pass)]).is_err());
    }

    #[test]
    fn the_file_is_readable() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        Reasons::read(&root.join(REASONS)).unwrap();
    }
}
