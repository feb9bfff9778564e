//! The results as a table for people and as JSON for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::axes::{Axes, Cell, Fault, Op, Role, Transport};
use crate::cells::{Ends, Outcome};
use crate::limits;
use crate::refusals::{Report, Wrong};

/// Everything that a run found.
pub(crate) struct Results {
    pub(crate) ends: Ends,
    pub(crate) cells: Vec<(Cell, Outcome)>,
    pub(crate) refusals: Vec<(Role, Wrong, Report)>,
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, Default)]
struct Count {
    passed: usize,
    lost: usize,
    limited: usize,
    failed: usize,
}

impl Count {
    fn add(&mut self, cell: &Cell, outcome: &Outcome) {
        match outcome {
            Outcome::Pass => self.passed += 1,
            Outcome::Lost => self.lost += 1,
            Outcome::Fail(why) if limits::of_cell(cell, why).is_some() => self.limited += 1,
            Outcome::Fail(_) => self.failed += 1,
        }
    }

    fn text(&self) -> String {
        let Count { passed, lost, limited, failed } = *self;
        let total = passed + lost + limited + failed;
        if total == 0 {
            return String::new();
        }
        if limited == total {
            return format!("rxe ({limited})");
        }
        let mut text = format!("{}/{total}", passed + lost);
        if lost > 0 {
            let _ = write!(text, " ({lost} lost)");
        }
        if limited > 0 {
            let _ = write!(text, " ({limited} rxe)");
        }
        if failed > 0 {
            let _ = write!(text, " **{failed} failed**");
        }
        text
    }
}

impl Results {
    /// Cells and refusals that went wrong and are no limit of rxe's.
    pub(crate) fn failures(&self) -> usize {
        let cells = self.cells.iter().filter(|(cell, outcome)| match outcome {
            Outcome::Fail(why) => limits::of_cell(cell, why).is_none(),
            _ => false,
        });
        let refusals = self.refusals.iter().filter(|(role, wrong, report)| {
            !report.wrong.is_empty() && limits::of_refusal(*wrong, *role).is_none()
        });
        cells.count() + refusals.count()
    }

    fn count(&self, of: impl Fn(&Cell) -> bool) -> Count {
        let mut count = Count::default();
        for (cell, outcome) in self.cells.iter().filter(|(cell, _)| of(cell)) {
            count.add(cell, outcome);
        }
        count
    }

    /// Markdown.
    pub(crate) fn table(&self, axes: &Axes) -> String {
        let mut text = String::new();
        let theirs = &self.ends.theirs;
        let _ = writeln!(
            text,
            "Linux {}, {}: {} cells, {} refusals, seed {}.\n",
            theirs.version,
            theirs.device,
            self.cells.len(),
            self.refusals.len(),
            self.seed
        );
        self.operations(axes, &mut text);
        self.by_mtu(axes, &mut text);
        self.refused(&mut text);
        self.exceptions(&mut text);
        text
    }

    fn operations(&self, axes: &Axes, text: &mut String) {
        let _ = write!(text, "| transport | operation | we are the |");
        for fault in &axes.faults {
            let _ = write!(text, " {fault} |");
        }
        let _ = writeln!(text, "\n|{}", " --- |".repeat(3 + axes.faults.len()));
        for transport in Transport::ALL {
            for op in transport.ops() {
                for role in Role::ALL {
                    self.operation(transport, *op, role, &axes.faults, text);
                }
            }
        }
    }

    fn operation(
        &self,
        transport: Transport,
        op: Op,
        role: Role,
        faults: &[Fault],
        text: &mut String,
    ) {
        let _ = write!(text, "| {transport} | {op} | {role} |");
        for fault in faults {
            let count = self.count(|cell| {
                (cell.transport, cell.op, cell.role, cell.fault) == (transport, op, role, *fault)
            });
            let _ = write!(text, " {} |", count.text());
        }
        text.push('\n');
    }

    fn by_mtu(&self, axes: &Axes, text: &mut String) {
        let _ = write!(text, "\n| transport, path MTU |");
        for fault in &axes.faults {
            let _ = write!(text, " {fault} |");
        }
        let _ = writeln!(text, "\n|{}", " --- |".repeat(1 + axes.faults.len()));
        for transport in Transport::ALL {
            for mtu in &axes.mtus {
                let _ = write!(text, "| {transport}, {} |", mtu.bytes());
                for fault in &axes.faults {
                    let count = self.count(|cell| {
                        (cell.transport, cell.mtu, cell.fault) == (transport, *mtu, *fault)
                    });
                    let _ = write!(text, " {} |", count.text());
                }
                text.push('\n');
            }
        }
    }

    fn refused(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\n| what is wrong | we are the | requester's WR | its QP | responder's receive | its QP | |"
        );
        let _ = writeln!(text, "|{}", " --- |".repeat(7));
        for (role, wrong, report) in &self.refusals {
            let state = |error| if error { "ERR" } else { "RTS" };
            let verdict = match (report.wrong.is_empty(), limits::of_refusal(*wrong, *role)) {
                (true, _) => "as it must be".into(),
                (false, Some(_)) => "rxe".into(),
                (false, None) => format!("**{}**", report.wrong.join("; ")),
            };
            let name = |status: &Option<elver_verbs::WcStatus>| {
                status.map_or("—".into(), |status| status.to_string())
            };
            let _ = writeln!(
                text,
                "| {} | {role} | {} | {} | {} | {} | {verdict} |",
                wrong.text(),
                name(&report.requester),
                state(report.requester_in_error),
                name(&report.responder),
                match wrong {
                    Wrong::NoSuchQp => "—",
                    _ => state(report.responder_in_error),
                }
            );
        }
    }

    /// Why cells and refusals are not as they must be: rxe's limits, and every other one by itself.
    fn exceptions(&self, text: &mut String) {
        let mut limits: Vec<(&str, usize)> = Vec::new();
        let mut count = |reason: &'static str| match limits.iter_mut().find(|(at, _)| *at == reason)
        {
            Some((_, cells)) => *cells += 1,
            None => limits.push((reason, 1)),
        };
        let mut others = Vec::new();
        for (cell, outcome) in &self.cells {
            let Outcome::Fail(why) = outcome else { continue };
            match limits::of_cell(cell, why) {
                Some(reason) => count(reason),
                None => others.push(format!("{cell}: {why}")),
            }
        }
        for (role, wrong, report) in &self.refusals {
            if report.wrong.is_empty() {
                continue;
            }
            match limits::of_refusal(*wrong, *role) {
                Some(reason) => count(reason),
                None => {
                    let what = report.wrong.join("; ");
                    others.push(format!("{}, we as {role}: {what}", wrong.text()));
                }
            }
        }
        if !limits.is_empty() {
            let _ = writeln!(text, "\nLimits of rxe:\n");
        }
        for (reason, cells) in limits {
            let _ = writeln!(text, "- {reason} ({cells} of the above).");
        }
        if !others.is_empty() {
            let _ = writeln!(text, "\nNot understood:\n");
        }
        for other in others {
            let _ = writeln!(text, "- {other}.");
        }
    }

    /// Every cell and every refusal.
    pub(crate) fn json(&self) -> Value {
        let cells: Vec<Value> = self
            .cells
            .iter()
            .map(|(cell, outcome)| {
                let (result, reason) = match outcome {
                    Outcome::Pass => ("pass", None),
                    Outcome::Lost => ("lost", None),
                    Outcome::Fail(why) => ("fail", Some(why)),
                };
                json!({
                    "transport": cell.transport,
                    "op": cell.op,
                    "role": cell.role,
                    "mtu": cell.mtu.bytes(),
                    "size": cell.size,
                    "fault": cell.fault.to_string(),
                    "result": result,
                    "reason": reason,
                    "limit": reason.and_then(|why| limits::of_cell(cell, why)),
                })
            })
            .collect();
        let refusals: Vec<Value> = self
            .refusals
            .iter()
            .map(|(role, wrong, report)| {
                json!({
                    "wrong": wrong,
                    "role": role,
                    "requester": report.requester.map(|status| status.to_string()),
                    "requester_in_error": report.requester_in_error,
                    "responder": report.responder.map(|status| status.to_string()),
                    "responder_in_error": report.responder_in_error,
                    "unexpected": report.wrong,
                    "limit": limits::of_refusal(*wrong, *role).filter(|_| !report.wrong.is_empty()),
                })
            })
            .collect();
        json!({
            "bench": "interop",
            "kernel": self.ends.theirs.version,
            "seed": self.seed,
            "failures": self.failures(),
            "cells": cells,
            "refusals": refusals,
        })
    }
}
