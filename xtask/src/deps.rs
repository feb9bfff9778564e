//! `cargo xtask deps`: what the workspace is built of, by `deny.toml`: every crate has a licence that is
//! allowed there, and comes from a registry that is; and what of it is published has a README. cargo-deny
//! checks the licences and more; to build it takes as long as a good part of CI, and its advisories want a
//! network (`cargo xtask advisories` asks a checkout).

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::metadata::{list, metadata, text};

/// The part of `deny.toml` that is checked here.
#[derive(serde::Deserialize)]
struct Rules {
    licenses: Licenses,
    sources: Sources,
}

#[derive(serde::Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

/// Checks all crates of the lock file; says what it found.
pub(crate) fn check() -> Result<String> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deny.toml");
    let rules = std::fs::read_to_string(file).context("cannot read deny.toml")?;
    let rules: Rules = toml::from_str(&rules).context("deny.toml")?;
    let metadata = metadata(&[])?;
    let packages = list(&metadata, "packages")?;
    let mut wrong = Vec::new();
    for package in packages {
        wrong.extend(faults(package, &rules)?);
    }
    ensure!(wrong.is_empty(), "deny.toml does not allow:\n{}", wrong.join("\n"));
    Ok(format!(
        "{} crates, all with licences and from registries that deny.toml allows",
        packages.len()
    ))
}

/// What is wrong with a crate.
fn faults(package: &Value, rules: &Rules) -> Result<Vec<String>> {
    let name = format!("{} {}", text(package, "name")?, text(package, "version")?);
    let mut wrong = Vec::new();
    match package["license"].as_str() {
        None => wrong.push(format!("{name}: it names no licence")),
        Some(license) => {
            let allowed = |one: &str| rules.licenses.allow.iter().any(|allowed| allowed == one);
            if !satisfied(license, &allowed).with_context(|| name.clone())? {
                wrong.push(format!("{name}: {license}"));
            }
        }
    }
    // Crates of the workspace have no source.
    if let Some(source) = package["source"].as_str() {
        let registry = source.strip_prefix("registry+").unwrap_or(source);
        if !rules.sources.allow_registry.iter().any(|allowed| allowed == registry) {
            wrong.push(format!("{name}: from {source}"));
        }
    }
    // What the workspace asks for has a version.
    if package["source"].is_null() {
        // It may be published anywhere, or nowhere.
        let is_published = package["publish"].as_array().is_none_or(|places| !places.is_empty());
        if is_published && package["readme"].is_null() {
            wrong.push(format!("{name}: it is published, and has no README.md"));
        }
        for dependency in list(package, "dependencies")? {
            if dependency["req"] == "*" && dependency["path"].is_null() {
                wrong.push(format!("{name}: {} of any version", text(dependency, "name")?));
            }
        }
    }
    Ok(wrong)
}

/// Whether an SPDX expression is satisfied by licences that are allowed; `/` is an old form of OR.
fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> Result<bool> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let satisfied = any(&mut rest, allowed)?;
    ensure!(rest.is_empty(), "{expression:?} is no licence expression");
    Ok(satisfied)
}

/// `A OR B`, which binds least.
fn any(rest: &mut &[&str], allowed: &dyn Fn(&str) -> bool) -> Result<bool> {
    let mut satisfied = all(rest, allowed)?;
    while take(rest, "OR") {
        satisfied |= all(rest, allowed)?;
    }
    Ok(satisfied)
}

/// `A AND B`.
fn all(rest: &mut &[&str], allowed: &dyn Fn(&str) -> bool) -> Result<bool> {
    let mut satisfied = one(rest, allowed)?;
    while take(rest, "AND") {
        satisfied &= one(rest, allowed)?;
    }
    Ok(satisfied)
}

/// A licence, with an exception or without, or an expression in parentheses.
fn one(rest: &mut &[&str], allowed: &dyn Fn(&str) -> bool) -> Result<bool> {
    if take(rest, "(") {
        let satisfied = any(rest, allowed)?;
        ensure!(take(rest, ")"), "a parenthesis is not closed");
        return Ok(satisfied);
    }
    let Some((name, more)) = rest.split_first() else { bail!("a licence is missing") };
    ensure!(![")", "AND", "OR", "WITH"].contains(name), "{name:?} is no licence");
    *rest = more;
    match rest {
        ["WITH", exception, more @ ..] => {
            *rest = more;
            Ok(allowed(&format!("{name} WITH {exception}")))
        }
        _ => Ok(allowed(name)),
    }
}

fn take(rest: &mut &[&str], word: &str) -> bool {
    let is_next = rest.first() == Some(&word);
    if is_next {
        *rest = &rest[1..];
    }
    is_next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_has_them() {
        let allowed = |one: &str| matches!(one, "MIT" | "B" | "C WITH e");
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("GPL-3.0 OR MIT AND B", true),
            ("(GPL-3.0 OR MIT) AND X", false),
            ("(GPL-3.0 OR MIT) AND B", true),
            ("C WITH e OR GPL-3.0", true),
            ("C OR GPL-3.0", false),
        ] {
            assert_eq!(satisfied(expression, &allowed).unwrap(), expected, "{expression}");
        }
        for wrong in ["", "MIT OR", "(MIT", "MIT MIT", ")"] {
            assert!(satisfied(wrong, &allowed).is_err(), "{wrong:?}");
        }
    }

    /// A licence that nobody allowed, a crate from anywhere, and one of any version were all taken.
    #[test]
    fn what_is_not_allowed_is_told() {
        let rules = Rules {
            licenses: Licenses { allow: vec!["MIT".into()] },
            sources: Sources { allow_registry: vec!["https://here".into()] },
        };
        let package = |license: &str, source: Value| {
            let wild = serde_json::json!({ "name": "x", "req": "*", "path": null });
            serde_json::json!({
                "name": "a", "version": "1.0.0", "license": license, "source": source,
                "dependencies": [wild], "readme": "README.md", "publish": null,
            })
        };
        let found = |package: Value| faults(&package, &rules).unwrap();
        assert!(found(package("MIT", "registry+https://here".into())).is_empty());
        assert_eq!(found(package("MIT", "git+https://there".into())).len(), 1);
        assert_eq!(found(package("AGPL-3.0", "registry+https://there".into())).len(), 2);
        assert_eq!(found(package("MIT", Value::Null)), ["a 1.0.0: x of any version"]);
        let mut bare = package("MIT", Value::Null);
        (bare["readme"], bare["dependencies"]) = (Value::Null, Value::Array(Vec::new()));
        assert_eq!(found(bare.clone()), ["a 1.0.0: it is published, and has no README.md"]);
        bare["publish"] = Value::Array(Vec::new());
        assert!(found(bare).is_empty());
    }
}
