//! `cargo xtask advisories DIR`: whether anything is known against the crates of the lock file, by a checkout of
//! RustSec's database (<https://github.com/rustsec/advisory-db>), which is what cargo-deny and cargo-audit ask. Faults,
//! unsound interfaces and crates that nobody maintains count; those that `deny.toml` ignores, by their numbers, do not.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use semver::{Version, VersionReq};
use serde::Deserialize;

use crate::metadata::{list, metadata, text};

/// The part of `deny.toml` that is of use here.
#[derive(Deserialize)]
struct Rules {
    advisories: Ignored,
}

#[derive(Deserialize)]
struct Ignored {
    #[serde(default)]
    ignore: Vec<String>,
}

/// The head of a file of the database.
#[derive(Deserialize)]
struct Advisory {
    advisory: About,
    versions: Versions,
}

#[derive(Deserialize)]
struct About {
    id: String,
    date: String,
    withdrawn: Option<String>,
    informational: Option<String>,
}

#[derive(Deserialize)]
struct Versions {
    #[serde(default)]
    patched: Vec<VersionReq>,
    #[serde(default)]
    unaffected: Vec<VersionReq>,
}

/// Checks all crates of the lock file; says what it found.
pub(crate) fn check(arguments: &[String]) -> Result<String> {
    let [database] = arguments else {
        anyhow::bail!("name a checkout of https://github.com/rustsec/advisory-db");
    };
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deny.toml");
    let rules = fs::read_to_string(file).context("cannot read deny.toml")?;
    let rules: Rules = toml::from_str(&rules).context("deny.toml")?;
    let crates = Path::new(database).join("crates");
    let metadata = metadata(&[])?;
    let (mut found, mut asked) = (Vec::new(), 0);
    for package in list(&metadata, "packages")? {
        // Those of the workspace have no source, and perhaps another's name.
        if package["source"].is_null() {
            continue;
        }
        let (name, version) = (text(package, "name")?, text(package, "version")?);
        let version: Version = version.parse().with_context(|| format!("{name} {version}"))?;
        asked += 1;
        for advisory in of_crate(&crates.join(name))? {
            if advisory.concerns(&version)
                && !rules.advisories.ignore.contains(&advisory.advisory.id)
            {
                found.push(format!("{name} {version}: {}", advisory.advisory));
            }
        }
    }
    ensure!(found.is_empty(), "RustSec knows of:\n{}", found.join("\n"));
    let (count, newest) = extent(&crates)?;
    Ok(format!(
        "{asked} crates, and none of {count} advisories, the newest of {newest}, is of them"
    ))
}

impl Advisory {
    /// The database's files begin with a block of TOML.
    fn read(file: &Path) -> Result<Advisory> {
        let text = fs::read_to_string(file)?;
        let head =
            text.trim_start().strip_prefix("```toml").and_then(|rest| rest.split_once("```"));
        let (head, _) = head.context("it does not begin with a block of TOML")?;
        Ok(toml::from_str(head)?)
    }

    /// Whether it says something against a version of its crate.
    fn concerns(&self, version: &Version) -> bool {
        let About { withdrawn, informational, .. } = &self.advisory;
        let Versions { patched, unaffected } = &self.versions;
        withdrawn.is_none()
            && informational.as_deref().map(str::trim) != Some("notice")
            && !patched.iter().chain(unaffected).any(|well| well.matches(version))
    }
}

impl std::fmt::Display for About {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.informational.as_deref().unwrap_or("vulnerable");
        write!(f, "{kind}, https://rustsec.org/advisories/{}.html", self.id)
    }
}

/// The advisories of a crate, by its folder; most have none.
fn of_crate(folder: &Path) -> Result<Vec<Advisory>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let advisory =
        |file: PathBuf| Advisory::read(&file).with_context(|| file.display().to_string());
    files(folder)?.into_iter().map(advisory).collect()
}

/// How many there are, and the day of the newest: a database that is old, or none, knows little.
fn extent(crates: &Path) -> Result<(usize, String)> {
    let mut days = Vec::new();
    for folder in files(crates)? {
        days.extend(of_crate(&folder)?.into_iter().map(|advisory| advisory.advisory.date));
    }
    let newest = days.iter().max().cloned();
    Ok((days.len(), newest.with_context(|| format!("no advisories in {}", crates.display()))?))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    Ok(entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advisory(more: &str, versions: &str) -> Advisory {
        let head = "id = \"RUSTSEC-2026-0001\"\npackage = \"some\"\ndate = \"2026-01-02\"";
        toml::from_str(&format!("[advisory]\n{head}\n{more}\n[versions]\n{versions}")).unwrap()
    }

    fn concerns(advisory: &Advisory, version: &str) -> bool {
        advisory.concerns(&version.parse().unwrap())
    }

    #[test]
    fn versions_are_patched_or_never_were_affected() {
        let one = advisory(
            "",
            "patched = [\">= 1.2.3, < 1.3.0\", \">= 1.3.4\"]\nunaffected = [\"< 0.5\"]",
        );
        for version in ["0.5.0", "1.2.2", "1.3.0", "1.3.3"] {
            assert!(concerns(&one, version), "{version}");
        }
        for version in ["0.4.9", "1.2.3", "1.2.99", "1.3.4", "2.0.0"] {
            assert!(!concerns(&one, version), "{version}");
        }
    }

    #[test]
    fn what_was_withdrawn_or_is_a_notice_concerns_nobody() {
        assert!(concerns(&advisory("", "patched = []"), "1.0.0"));
        assert!(concerns(&advisory("informational = \"unmaintained\"", "patched = []"), "1.0.0"));
        assert!(!concerns(&advisory("informational = \"notice\"", "patched = []"), "1.0.0"));
        assert!(!concerns(&advisory("withdrawn = \"2026-02-02\"", "patched = []"), "1.0.0"));
    }

    #[test]
    fn what_is_no_database_is_told() {
        let nothing = check(&["/nonexistent".into()]).unwrap_err();
        assert!(format!("{nothing:#}").contains("/nonexistent/crates"), "{nothing:#}");
        assert!(check(&[]).unwrap_err().to_string().contains("advisory-db"));
    }
}
