//! What the benchmarks between two ends have in common: where they run, how often, what the machine
//! was like meanwhile, and the two forms in which they tell it.

use elver_console::{Failure, Progress, say};
use serde_json::Value;

use crate::args::{RunArgs, Stage};
use crate::report::contract;
use crate::report::machine::{Machine, Watch};
use crate::report::rows::{self, Row};

/// A benchmark that runs.
pub(crate) struct Frame {
    name: &'static str,
    pub(crate) stage: Stage,
    rounds: u32,
    json: bool,
    watch: Watch,
}

/// One that has run.
pub(crate) struct Ended {
    frame: Frame,
    machine: Machine,
}

impl Frame {
    pub(crate) fn begin(name: &'static str, args: &RunArgs) -> Frame {
        let RunArgs { rounds, json, .. } = *args;
        let stage = Stage::chosen(args.placement);
        Frame { name, stage, rounds, json, watch: Watch::begin() }
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
        let progress = Progress::begin();
        for number in 1..=self.rounds {
            let of = self.rounds;
            let doing = |what: &str| progress.doing(&format!("round {number} of {of}: {what}"));
            round(self.stage, &doing)?;
        }
        let machine = self.watch.end();
        Ok(Ended { frame: self, machine })
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
        let Frame { name, stage, rounds, json, .. } = self.frame;
        if json {
            let mut object = own();
            object["bench"] = name.into();
            object["placement"] = stage.name().into();
            object["rounds"] = rounds.into();
            self.machine.tell(&mut object);
            if let Some(claims) = claims {
                object["claims"] = contract::claims_as_json(claims);
            }
            say!("{object}");
            return;
        }
        self.machine.print(&format!("rounds: {rounds}; placement: {}", stage.name()));
        table();
        rows::print("claim", claims.unwrap_or_default());
    }
}
