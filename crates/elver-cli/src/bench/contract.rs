//! Rows as the JSON has them. Their names and keys are a contract with programs.

use serde_json::{Value, json};

use crate::bench::args::Stage;
use crate::bench::machine::siblings;
use crate::bench::rows::{Figure, Row};
use crate::bench::sample::Sample;

/// What the rounds of one measurement gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) p50_us: Figure,
    pub(crate) p99_us: Figure,
    pub(crate) per_s: Figure,
}

impl Figures {
    pub(crate) fn push(&mut self, sample: &Sample) {
        self.p50_us.push(sample.us(50.0));
        self.p99_us.push(sample.us(99.0));
        self.per_s.push(sample.per_s());
    }
}

/// Numbers as the JSON has them: nanoseconds are enough.
pub(crate) fn us(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// The claims of a benchmark: each with its target, and whether it is met.
pub(crate) fn claims_as_json(claims: &[Row]) -> Value {
    claims.iter().map(Row::as_json).collect::<Vec<_>>().into()
}

/// Prints the claims as a table; nothing if there are none.
pub(crate) fn print_claims(claims: &[Row]) {
    if claims.is_empty() {
        return;
    }
    println!("\nclaims");
    for claim in claims {
        claim.print();
    }
}

/// What the machine was like.
pub(crate) fn machine_as_json(before_ns: f64, after_ns: f64) -> Value {
    json!({"before": us(before_ns), "after": us(after_ns), "siblings": siblings(before_ns, after_ns)})
}

/// The same for people, with what was asked for.
pub(crate) fn print_machine(rounds: u32, stage: Stage, before_ns: f64, after_ns: f64) {
    let warning = if siblings(before_ns, after_ns) {
        ": the cores are threads of one core, expect better figures"
    } else {
        ""
    };
    println!(
        "{rounds} rounds; placement {}; a cache line's round trip {before_ns:.0} ns before, \
         {after_ns:.0} ns after{warning}",
        stage.name()
    );
}
