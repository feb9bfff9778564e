//! Rows as the JSON has them. Their names and keys are a contract with programs.

use elver_console::table::number;
use elver_testbed::sample::Sample;
use serde_json::Value;

use crate::report::rows::{Figure, Row};

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

    /// The median with its spread, the 99th percentile and the rate, for people.
    pub(crate) fn texts(&self) -> [String; 3] {
        [self.p50_us.text(), number(self.p99_us.median()), number(self.per_s.median())]
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
