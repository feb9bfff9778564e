//! The rule for arrows: a crate depends only on crates of lower floors. Each crate names its floor
//! in its manifest, under `package.metadata.elver.floor`; tools of the workspace stand outside.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::metadata::{list, metadata, text};

/// Members that are no part of the house.
const OUTSIDE: [&str; 2] = ["xtask", "elver-fuzz"];

/// Checks the workspace; says what it found.
pub(crate) fn check() -> Result<String> {
    let (floors, arrows) = read(&metadata(&["--no-deps"])?)?;
    let wrong = wrong_arrows(&floors, &arrows);
    ensure!(wrong.is_empty(), "arrows must point down:\n{wrong}");
    Ok(format!("{} crates, {} arrows, all of them point down", floors.len(), arrows.len()))
}

/// By name; elver-core stands between two whole floors.
type Floors = BTreeMap<String, f64>;
type Arrows = Vec<(String, String)>;

/// The floors of the members and the arrows between them, those of tests and builds included.
fn read(metadata: &Value) -> Result<(Floors, Arrows)> {
    let mut floors = Floors::new();
    let packages = list(metadata, "packages")?;
    for package in packages {
        let name = text(package, "name")?;
        if OUTSIDE.contains(&name) {
            continue;
        }
        let floor = package["metadata"]["elver"]["floor"]
            .as_f64()
            .with_context(|| format!("{name} names no package.metadata.elver.floor"))?;
        floors.insert(name.into(), floor);
    }
    let mut arrows = Arrows::new();
    for package in packages {
        let name = text(package, "name")?;
        for dependency in list(package, "dependencies")? {
            let target = text(dependency, "name")?;
            // A crate's tests may ask for features of its own.
            if name != target && floors.contains_key(name) && floors.contains_key(target) {
                arrows.push((name.into(), target.into()));
            }
        }
    }
    Ok((floors, arrows))
}

/// The arrows that run up or sideways, a line each.
fn wrong_arrows(floors: &Floors, arrows: &Arrows) -> String {
    let mut lines = String::new();
    for (from, to) in arrows {
        if floors[to] >= floors[from] {
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "  {from} ({}) -> {to} ({})", floors[from], floors[to]);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn house(dependency_of_low: &str) -> Value {
        let package = |name: &str, floor: f64, dependency: &str| {
            json!({
                "name": name,
                "metadata": {"elver": {"floor": floor}},
                "dependencies": [{"name": dependency, "kind": "dev"}],
            })
        };
        json!({"packages": [
            package("low", 0.0, dependency_of_low),
            package("beside", 0.0, "libc"),
            package("high", 0.5, "low"),
        ]})
    }

    #[test]
    fn down_is_right() {
        let (floors, arrows) = read(&house("libc")).unwrap();
        assert_eq!(arrows, [("high".to_string(), "low".to_string())]);
        assert_eq!(wrong_arrows(&floors, &arrows), "");
    }

    #[test]
    fn up_and_sideways_are_wrong() {
        for target in ["high", "beside"] {
            let (floors, arrows) = read(&house(target)).unwrap();
            assert!(wrong_arrows(&floors, &arrows).contains(&format!("low (0) -> {target}")));
        }
    }

    #[test]
    fn a_crate_stands_on_itself() {
        let (floors, arrows) = read(&house("low")).unwrap();
        assert_eq!(wrong_arrows(&floors, &arrows), "");
    }

    #[test]
    fn a_crate_without_a_floor_is_told() {
        let homeless = json!({"packages": [{"name": "stray", "dependencies": []}]});
        assert!(read(&homeless).unwrap_err().to_string().contains("stray"));
    }
}
