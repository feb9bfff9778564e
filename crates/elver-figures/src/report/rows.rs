//! Rows of figures: medians with their spread, and the ratio to a baseline.

use elver_console::table::{self, number};
use serde_json::{Value, json};

/// What several repetitions gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figure(Vec<f64>);

impl Figure {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
        self.0.sort_by(f64::total_cmp);
    }

    pub(crate) fn median(&self) -> f64 {
        match self.0.len() {
            0 => f64::NAN,
            len if len % 2 == 1 => self.0[len / 2],
            len => (self.0[len / 2 - 1] + self.0[len / 2]) / 2.0,
        }
    }

    fn min(&self) -> f64 {
        self.0.first().copied().unwrap_or(f64::NAN)
    }

    fn max(&self) -> f64 {
        self.0.last().copied().unwrap_or(f64::NAN)
    }

    /// Median and spread, for people.
    pub(crate) fn text(&self) -> String {
        let [median, min, max] = [self.median(), self.min(), self.max()].map(number);
        if self.0.len() < 2 { median } else { format!("{median} [{min} … {max}]") }
    }

    /// The least and the most.
    pub(crate) fn spread(&self) -> [f64; 2] {
        [self.min(), self.max()]
    }

    fn as_json(&self) -> Value {
        json!({"median": self.median(), "min": self.min(), "max": self.max()})
    }
}

/// Which way is better, and how far it should go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
    /// For reference.
    None,
}

impl Target {
    fn met(self, value: f64) -> Option<bool> {
        match self {
            Target::AtMost(most) => Some(value <= most),
            Target::AtLeast(least) => Some(value >= least),
            Target::None => None,
        }
    }

    fn text(self) -> String {
        match self {
            Target::AtMost(most) => format!("≤ {most}"),
            Target::AtLeast(least) => format!("≥ {least}"),
            Target::None => String::new(),
        }
    }
}

/// One claim: our figure, what it is compared with, and the target for the figure, or for the
/// ratio where there is a baseline.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) ours: Figure,
    pub(crate) baseline: Option<(&'static str, Figure)>,
    pub(crate) target: Target,
}

impl Row {
    fn judged(&self) -> f64 {
        match &self.baseline {
            Some((_, baseline)) => self.ours.median() / baseline.median(),
            None => self.ours.median(),
        }
    }

    pub(crate) fn as_json(&self) -> Value {
        json!({
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours.as_json(),
            "baseline": self.baseline.as_ref().map(|(name, figure)| {
                json!({"name": name, "figure": figure.as_json()})
            }),
            "ratio": self.baseline.as_ref().map(|_| self.judged()),
            "target": self.target.text(),
            "met": self.target.met(self.judged()),
        })
    }

    fn cells(&self) -> [String; 7] {
        let (beside, ratio) = match &self.baseline {
            Some((name, figure)) => {
                (format!("{name} {}", figure.text()), format!("{:.2}", self.judged()))
            }
            None => (String::new(), String::new()),
        };
        let met = match self.target.met(self.judged()) {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        let (name, unit) = (self.name.clone(), self.unit.to_string());
        [name, unit, beside, self.ours.text(), ratio, self.target.text(), met.into()]
    }
}

/// Prints rows as a table; nothing if there are none.
pub(crate) fn print(title: &str, rows: &[Row]) {
    let heads = [title, "", "beside", "median [min … max]", "ratio", "target", ""];
    table::print(heads, &rows.iter().map(Row::cells).collect::<Vec<_>>(), 3);
}
