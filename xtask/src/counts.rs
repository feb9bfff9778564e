//! Instruction counts of the hot paths: `elver-bench` under valgrind, which counts the same on every
//! machine and however busy it is. `docs/instruction-counts.md` holds what was counted last.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::metadata::{metadata, text};

const TABLE: &str = "docs/instruction-counts.md";
/// A change of this share is told as drift: less is the layout of code and memory.
const DRIFT_MIN: f64 = 0.01;
/// A path that takes so much more than the page says fails the check: whoever makes one longer renews the page,
/// and says why.
const GROWTH_MAX: f64 = 0.02;
const INITIATOR: &str = "initiator";
const TARGET: &str = "target";

/// Counts, and does with it what the arguments say; says what it did.
pub(crate) fn run(arguments: &[String]) -> Result<String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let metadata = metadata(&["--no-deps"])?;
    let table = Path::new(text(&metadata, "workspace_root")?).join(TABLE);
    match arguments[..] {
        [] => {
            let counts = count(&metadata)?;
            std::fs::write(&table, render(&counts)).context(TABLE)?;
            Ok(format!("wrote {TABLE}"))
        }
        ["--json"] => Ok(serde_json::to_string_pretty(&as_json(&count(&metadata)?))?),
        ["--check"] => {
            let written = std::fs::read_to_string(&table).context(TABLE)?;
            let counts = count(&metadata)?;
            let (told, grown) = drift(&written, &counts);
            ensure!(grown == 0, "{told}{grown} counts grew by more than 2 %");
            Ok(told)
        }
        _ => bail!("cargo xtask counts takes nothing, --json or --check"),
    }
}

/// What was counted, and with what.
struct Counts {
    toolchain: String,
    valgrind: String,
    features: String,
    rows: Vec<Row>,
}

/// A path as `elver-bench` lists it, with its counts.
struct Row {
    group: String,
    name: String,
    title: String,
    /// Instructions an operation.
    initiator: f64,
    /// Instructions an operation, if the path has a second side.
    target: Option<f64>,
}

fn count(metadata: &Value) -> Result<Counts> {
    let valgrind = said(Command::new("valgrind").arg("--version"))
        .context("cannot run valgrind: install it, on Debian with `apt install valgrind`")?;
    let bench = build(metadata)?;
    let features = said(valgrind_of(&bench, INITIATOR).arg("--features"))?;
    let mut rows = Vec::new();
    for line in said(&mut Command::new(&bench))?.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [group, name, sides, iterations, operations, title] = fields[..] else {
            bail!("elver-bench lists a path in a way that I do not know: {line:?}");
        };
        let operations = iterations.parse::<f64>()? * operations.parse::<f64>()?;
        let of = |side| Ok::<f64, anyhow::Error>(count_side(&bench, name, side)? / operations);
        eprintln!("counting {name}");
        let target = if sides.contains(TARGET) { Some(of(TARGET)?) } else { None };
        let (group, name, title) = (group.into(), name.into(), title.into());
        rows.push(Row { group, title, initiator: of(INITIATOR)?, target, name });
    }
    let toolchain = said(Command::new("rustc").arg("--version"))?;
    Ok(Counts { toolchain, valgrind, features, rows })
}

fn build(metadata: &Value) -> Result<PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--locked", "--package", "elver-bench"])
        .status()
        .context("cannot run cargo build")?;
    ensure!(status.success(), "cargo build failed");
    Ok(Path::new(text(metadata, "target_directory")?).join("release/elver-bench"))
}

/// Valgrind counting on one side of `elver-bench`, from the end of the warm-up on.
///
/// Environment and arguments lie on the stack and so move what lies below: they are kept the same.
fn valgrind_of(bench: &Path, side: &str) -> Command {
    let mut command = Command::new("valgrind");
    command
        .env_clear()
        .arg("--tool=callgrind")
        .arg("--callgrind-out-file=/dev/null")
        .arg(format!("--toggle-collect=elver_bench::sides::{side}_side*"))
        .arg("--zero-before=elver_bench::sides::counting_starts*")
        .arg(bench);
    command
}

/// The instructions of all counted iterations.
fn count_side(bench: &Path, name: &str, side: &str) -> Result<f64> {
    let output = valgrind_of(bench, side).arg(name).output().context("cannot run valgrind")?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed under valgrind: {log}");
    let total = log.lines().find_map(|line| line.split("Collected :").nth(1));
    let total: u64 = total.context("valgrind told no count")?.trim().parse()?;
    ensure!(total > 0, "valgrind saw nothing of {side}_side: was the symbol stripped or inlined?");
    Ok(total as f64)
}

/// What a command prints.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {errors}");
    Ok(String::from_utf8(output.stdout)?.trim().into())
}

/// The parts of the table: what they are of, and what their sides do.
const GROUPS: [(&str, &str, &str); 7] = [
    (
        "wire",
        "Packets without a device",
        "The initiator builds an RC WRITE_ONLY, copies the payload in and seals it with the ICRC; \
         the target\nparses it and checks the ICRC.",
    ),
    (
        "remote",
        "Two devices",
        "The whole way of an operation: post, transmit, seal, receive, check, answer, complete, \
         poll. Every WR is\nsignalled, and a SEND's receive is posted anew by the target.",
    ),
    (
        "local",
        "Two QPs of one device",
        "Post, copy from MR to MR, poll. All of it happens on the initiator's side.",
    ),
    (
        "vqp",
        "VQPs of one node",
        "The same through VQPs over DC: what the core adds to the lines above, where each WR has a \
completion,
while here the last of a batch has.",
    ),
    (
        "vqp-pair",
        "VQPs of two nodes",
        "What the core adds to the lines of two devices: checks at the initiator, and for messages \
         a header and\ndispatch at the target. The last of a batch has a completion, and a batch's \
         receives are posted in one call.",
    ),
    (
        "ring",
        "Rings",
        "A message through a ring over VQPs of two nodes, by DC: it is copied into a slot, slot and \
         tail are posted in\none call, the receiver sees the tail and copies the message out. After \
         32 slots the head goes back, and counts with\nits share. What a process's session adds is \
         not counted.",
    ),
    (
        "control",
        "Connections",
        "Both ends: each creates a QP, asks its number and brings it from RESET to RTS.",
    ),
];

fn render(counts: &Counts) -> String {
    let Counts { toolchain, valgrind, features, rows } = counts;
    let mut page = format!(
        "\
# Instruction counts

Instructions an operation of the hot paths, after a warm-up, as valgrind counts them. They do not \
depend on how busy
the machine is, so that a change of one per cent shows; what a cache miss or a system call costs \
does not. `cargo
xtask counts` writes this page, `cargo xtask counts --check` tells how far the code has drifted \
from it. The paths are
in `crates/elver-bench`; time and randomness are fixed there.

Counted with {toolchain} and {valgrind}, which shows
the program a processor with: {features}. The ICRC thus runs on crc32fast's
PCLMULQDQ kernel; a processor with VPCLMULQDQ runs a wider one, in fewer instructions where \
payloads are long.
"
    );
    for (group, title, about) in GROUPS {
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## {title}\n\n{about}\n\n");
        let of_group = || rows.iter().filter(|row| row.group == group);
        let both = of_group().any(|row| row.target.is_some());
        page.push_str(match both {
            true => "| operation | initiator | target | both | name |\n| --- | --: | --: | --: | --- |\n",
            false => "| operation | instructions | name |\n| --- | --: | --- |\n",
        });
        for Row { title, initiator, target, name, .. } in of_group() {
            let _ = match target {
                Some(target) => {
                    let both = initiator + target;
                    writeln!(
                        page,
                        "| {title} | {initiator:.0} | {target:.0} | {both:.0} | `{name}` |"
                    )
                }
                None => writeln!(page, "| {title} | {initiator:.0} | `{name}` |"),
            };
        }
    }
    page
}

fn as_json(counts: &Counts) -> Value {
    let rows = counts.rows.iter().map(|row| {
        json!({
            "name": row.name,
            "group": row.group,
            "operation": row.title,
            "initiator": row.initiator,
            "target": row.target,
        })
    });
    json!({
        "toolchain": counts.toolchain,
        "valgrind": counts.valgrind,
        "features": counts.features,
        "instructions_per_operation": rows.collect::<Vec<_>>(),
    })
}

/// The counts of a page by name: of the initiator, and of the target if there is one.
fn parse(page: &str) -> BTreeMap<&str, Vec<f64>> {
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
        let [_, numbers @ .., name, ""] = &cells[..] else { return None };
        let name = name.strip_prefix('`')?.strip_suffix('`')?;
        let numbers = numbers.iter().map(|number| number.parse().ok());
        Some((name, numbers.take(2).collect::<Option<Vec<f64>>>()?))
    });
    rows.collect()
}

/// How far the counts are from those of a page; for people, whatever they are.
/// What to tell of how far counts are from the page, and how many grew too much: counted by the same tools.
fn drift(page: &str, counts: &Counts) -> (String, usize) {
    let written = parse(page);
    let (mut lines, mut grown, mut same_tools) = (String::new(), 0, true);
    for tool in [&counts.toolchain, &counts.valgrind] {
        if !page.contains(tool.as_str()) {
            same_tools = false;
            let _ = writeln!(lines, "  the page was counted with other than {tool}");
        }
    }
    for row in &counts.rows {
        let Some(before) = written.get(row.name.as_str()) else {
            let _ = writeln!(lines, "  {:20} is not on the page", row.name);
            continue;
        };
        let now = [(INITIATOR, Some(row.initiator)), (TARGET, row.target)];
        for ((side, now), before) in now.into_iter().zip(before) {
            let Some(now) = now else { continue };
            let change = now / before - 1.0;
            grown += usize::from(same_tools && change > GROWTH_MAX);
            if change.abs() >= DRIFT_MIN {
                let (name, per_cent) = (&row.name, change * 100.0);
                let _ = writeln!(
                    lines,
                    "  {name:20} {side:9} {before:6.0} -> {now:6.0}  {per_cent:+.1} %"
                );
            }
        }
    }
    let found = written.keys().filter(|name| !counts.rows.iter().any(|row| row.name == **name));
    for name in found {
        let _ = writeln!(lines, "  {name:20} is no longer counted");
    }
    let told = match lines.is_empty() {
        true => format!("{} paths, none of them 1 % from {TABLE}", counts.rows.len()),
        false => format!("drift from {TABLE} (`cargo xtask counts` rewrites it):\n{lines}"),
    };
    (told, grown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(initiator: f64, target: Option<f64>) -> Counts {
        let row = |group: &str, name: &str| Row {
            group: group.into(),
            name: name.into(),
            title: "RC READ 8 B".into(),
            initiator,
            target: if group == "local" { None } else { target },
        };
        Counts {
            toolchain: "rustc 1".into(),
            valgrind: "valgrind-3".into(),
            features: "sse".into(),
            rows: vec![row("remote", "far"), row("local", "near")],
        }
    }

    #[test]
    fn a_page_holds_what_was_counted() {
        let page = render(&counts(100.4, Some(50.0)));
        let parsed = parse(&page);
        assert_eq!(parsed["far"], [100.0, 50.0]);
        assert_eq!(parsed["near"], [100.0]);
        assert_eq!(parsed.len(), 2);
    }

    #[test]
    fn drift_is_told_from_one_per_cent_on() {
        let page = render(&counts(100.0, Some(50.0)));
        let (told, grown) = drift(&page, &counts(100.9, Some(50.0)));
        assert!(told.contains("none of them") && grown == 0, "{told}");
        let (told, grown) = drift(&page, &counts(100.0, Some(60.0)));
        assert_eq!(grown, 1);
        assert!(told.contains("far") && told.contains("+20.0 %"), "{told}");
        assert!(!told.contains("near"), "{told}");
        let (renamed, _) = drift(&page.replace("`near`", "`old`"), &counts(100.0, Some(50.0)));
        assert!(renamed.contains("near") && renamed.contains("no longer counted"), "{renamed}");
        // Fewer are welcome, and counts by other tools tell nothing of the code.
        assert_eq!(drift(&page, &counts(90.0, Some(50.0))).1, 0);
        let other = page.replace("valgrind-3", "valgrind-2");
        assert_eq!(drift(&other, &counts(100.0, Some(60.0))).1, 0);
    }
}
