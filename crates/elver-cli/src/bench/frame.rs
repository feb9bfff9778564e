//! What the benchmarks between two ends have in common: where they run, how often, what the machine
//! was like meanwhile, and the two forms in which they tell it.

use serde_json::{Value, json};

use crate::bench::args::{RunArgs, Stage};
use crate::bench::contract;
use crate::bench::machine::{line_round_trip_ns, siblings};
use crate::bench::rows::{self, Row};
use crate::exit::Failure;
use crate::out::say;
use crate::progress::Progress;

/// A benchmark that runs.
pub(crate) struct Frame {
    name: &'static str,
    pub(crate) stage: Stage,
    rounds: u32,
    json: bool,
    /// Nanoseconds of a cache line's round trip before the first round.
    before_ns: f64,
}

/// One that has run.
pub(crate) struct Ended {
    frame: Frame,
    after_ns: f64,
}

impl Frame {
    pub(crate) fn begin(name: &'static str, args: &RunArgs) -> Frame {
        let RunArgs { rounds, json, .. } = *args;
        let stage = Stage::chosen(args.placement);
        Frame { name, stage, rounds, json, before_ns: line_round_trip_ns() }
    }

    /// For a benchmark that processes of one daemon have no part in.
    pub(crate) fn begin_between_nodes(
        name: &'static str,
        args: &RunArgs,
    ) -> Result<Frame, Failure> {
        if args.placement == Some(Stage::Host) {
            let what = format!(
                "`bench {name}` is between two nodes: take `--placement loopback`, or `netns` as root"
            );
            return Err(Failure::unusable(what));
        }
        Ok(Frame::begin(name, args))
    }

    /// Measures everything once, and again. `round` is given what to tell its progress to.
    pub(crate) fn run(
        self,
        mut round: impl FnMut(Stage, &dyn Fn(&str)) -> Result<(), Failure>,
    ) -> Result<Ended, Failure> {
        let progress = Progress::new();
        for number in 1..=self.rounds {
            let of = self.rounds;
            let doing = |what: &str| progress.doing(&format!("round {number} of {of}: {what}"));
            round(self.stage, &doing)?;
        }
        Ok(Ended { frame: self, after_ns: line_round_trip_ns() })
    }
}

impl Ended {
    pub(crate) fn stage(&self) -> Stage {
        self.frame.stage
    }

    /// Tells the result: `own` as one JSON object, to which the rest is added, or as a table.
    /// `claims` are told behind it, if the benchmark has any.
    pub(crate) fn tell(
        &self,
        claims: Option<&[Row]>,
        own: impl FnOnce() -> Value,
        table: impl FnOnce(),
    ) {
        let Frame { name, stage, rounds, json, before_ns } = self.frame;
        let siblings = siblings(before_ns, self.after_ns);
        if json {
            let mut object = own();
            object["bench"] = name.into();
            object["placement"] = stage.name().into();
            object["rounds"] = rounds.into();
            object["line_round_trip_ns"] = json!({
                "before": contract::us(before_ns),
                "after": contract::us(self.after_ns),
                "siblings": siblings,
            });
            if let Some(claims) = claims {
                object["claims"] = contract::claims_as_json(claims);
            }
            say!("{object}");
            return;
        }
        say!(
            "rounds: {rounds}; placement: {}; a cache line's round trip {before_ns:.0} ns before, {:.0} \
             ns after{}",
            stage.name(),
            self.after_ns,
            if siblings {
                ": the cores are threads of one core, expect better figures"
            } else {
                ""
            }
        );
        table();
        rows::print("claim", claims.unwrap_or_default());
    }
}
