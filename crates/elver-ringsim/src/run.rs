//! A run: a safety phase, in which anything may fail, and a liveness phase, in which all that was sent must
//! arrive.

use elver_sim::{Failure, Fault};
use elver_verbs::Time;

use crate::canary::Canary;
use crate::model::{Violation, broken};
use crate::options::{Options, Report};
use crate::world::{EndIx, World, peer_of};

/// A partition lasts no longer than this.
const PARTITION_NS: u64 = 20_000_000;
/// An engine stands still no longer than this.
const PAUSE_NS: u64 = 5_000_000;
/// Answers are lost or late for no longer than this.
const WITHHELD_NS: u64 = 2_000_000;
/// How often the harness looks after ends while it waits for the end.
const STEP_NS: u64 = 1_000_000;
/// Messages of one call at most.
const BURST_MAX: u64 = 24;

/// Runs the simulation of a seed. The same seed and options always do the same.
///
/// # Errors
/// The rule that was broken, with the events that led to it. A run with a [`crate::Canary`] is
/// good if it fails.
pub fn run(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    run_drawn(seed, options, None)
}

/// As [`run`], with these of the faults that runs have or have not ([`crate::SWITCHED`]), and none of the others.
///
/// # Errors
/// As [`run`].
pub fn run_under(seed: u64, options: &Options, only: &[Fault]) -> Result<Report, Box<Failure>> {
    run_drawn(seed, options, Some(only))
}

fn run_drawn(seed: u64, options: &Options, only: Option<&[Fault]>) -> Result<Report, Box<Failure>> {
    let fail = |virtual_ns, violation: String, trace, canary_strikes| {
        Box::new(Failure { seed, virtual_ns, violation, trace, canary_strikes })
    };
    // What only a core itself can have brought about ends the run, also in a build that goes on.
    elver_verbs::bug::stop_at_bugs();
    let mut world =
        World::new(seed, options, only).map_err(|what| fail(0, what.0, Vec::new(), 0))?;
    match world.play() {
        Ok(()) => Ok(world.report(seed)),
        Err(what) => {
            let packets = if options.trace { world.cluster.net.trace() } else { Vec::new() };
            let trace = world.journal.lines(packets);
            Err(fail(world.now().0, what.0, trace, world.planter.struck()))
        }
    }
}

impl World {
    fn play(&mut self) -> Result<(), Violation> {
        self.note(format_args!("---- safety"));
        for _ in 0..self.plan.actions {
            let gap = self.acting.between(1, self.plan.gap_ns);
            self.run_until(self.now().saturating_add_ns(gap))?;
            self.step()?;
        }
        self.note(format_args!("---- liveness"));
        self.end_fates()?;
        self.cluster.net.heal();
        self.cluster.bring_back();
        self.healed = true;
        let well_at = self.now().saturating_add_ns(self.plan.spoilt_ns());
        self.well_at = Some(well_at);
        self.settle()?;
        // Nothing that comes now has an excuse.
        self.run_until(self.now().max(well_at.saturating_add_ns(1)))?;
        if let Some(&end) = self.living.first()
            && self.planter.strikes(Canary::EndedLate)
        {
            self.fails(end, "nothing was the matter".into())?;
        }
        self.note(format_args!("---- farewell"));
        for end in self.living.clone() {
            self.ends[end].sender.end();
            self.ways[end].ended = true;
        }
        self.settle()?;
        for end in self.living.clone() {
            self.over(end, "farewell".into())?;
        }
        self.run_until(self.now().saturating_add_ns(self.plan.patience_ns()))?;
        if let Some(spoilt) = self.ends.iter().position(|end| end.is_spoilt()) {
            broken!("end {spoilt} was written to when its memory was its alone again");
        }
        for node in 0..self.plan.nodes {
            let Some((core, _)) = self.cluster.core(node) else { broken!("node {node} is down") };
            core.audit().map_err(|what| Violation(format!("node {node}: {what}")))?;
            if core.stats().mrs > 0 {
                broken!("node {node} has {} regions, and no end is there", core.stats().mrs);
            }
        }
        Ok(())
    }

    /// Runs until nothing is due before or at `until`.
    fn run_until(&mut self, until: Time) -> Result<(), Violation> {
        while let Some(at) = self.cluster.next_event().filter(|at| *at <= until) {
            for node in self.cluster.advance(at)? {
                self.hear(node)?;
                if self.healed || self.looking.percent(self.plan.look_percent) {
                    for end in self.at(node) {
                        self.look(end)?;
                    }
                }
            }
        }
        self.cluster.now = self.cluster.now.max(until);
        self.cluster.net.advance(until);
        Ok(())
    }

    /// Does one thing that an end, an operator or fate does.
    fn step(&mut self) -> Result<(), Violation> {
        if self.befall()? {
            return Ok(());
        }
        let faults = self.plan.faults;
        let any = self.meddling.index(self.plan.nodes);
        if self.meddling.percent(faults.partition_percent) {
            let to = self.meddling.index(self.plan.nodes);
            let until = self.now().saturating_add_ns(self.meddling.between(1, PARTITION_NS));
            self.cluster.net.partition(any, to, until);
            self.note(format_args!("fault: partition, node {any} -> {to}"));
            return Ok(());
        }
        if self.meddling.percent(faults.slow_percent) {
            let until = self.now().saturating_add_ns(self.meddling.between(1, PAUSE_NS));
            self.cluster.net.stall(any, until);
            self.note(format_args!("fault: slow engine, node {any}"));
            return Ok(());
        }
        // The first node is everybody's meta server.
        if any > 0 && self.meddling.percent(faults.crash_percent) {
            return self.crash(any);
        }
        if self.meddling.percent(self.plan.answers_vanish_percent) {
            let to = self.meddling.index(self.plan.nodes);
            let until = self.now().saturating_add_ns(self.meddling.between(1, WITHHELD_NS));
            let lost = self.meddling.percent(50);
            self.cluster.net.withhold_answers(any, to, until, lost);
            let withheld = self.withheld.entry((any, to)).or_default();
            *withheld = until.max(*withheld);
            self.count("answers withheld");
            return Ok(());
        }
        if !self.living.is_empty() && self.meddling.percent(self.plan.leave_percent) {
            let end = self.meddling.pick(&self.living);
            return self.leave_pair(end);
        }
        if self.living.len() < 2 * self.plan.pairs && self.acting.percent(20) {
            return self.add_pair();
        }
        let up: Vec<EndIx> = self.living.iter().copied().filter(|end| self.may_act(*end)).collect();
        if up.is_empty() {
            return Ok(());
        }
        let end = self.acting.pick(&up);
        match self.acting.below(100) {
            0..60 => {
                let messages = self.acting.between(1, BURST_MAX);
                self.send(end, messages)?;
                self.count("burst");
            }
            60..75 => {
                self.ends[end].sender.flush();
                self.drive(end)?;
                self.count("flush");
            }
            75..93 => self.look(end)?,
            93..96 => {
                self.ends[end].receiver.push();
                self.drive(end)?;
            }
            96 => {
                self.ends[end].sender.end();
                self.ways[end].ended = true;
                self.drive(end)?;
                self.count("ended");
            }
            97 => {
                self.ends[end].receiver.stop();
                self.ways[peer_of(end)].stopped = true;
                self.drive(end)?;
                self.count("stopped");
            }
            _ => self.probe(end)?,
        }
        Ok(())
    }

    /// The process of an end dies; in some cases its memory goes before its node knows of it.
    fn leave_pair(&mut self, end: EndIx) -> Result<(), Violation> {
        if self.plan.memory_vanishes && self.meddling.percent(50) {
            self.ends[end].vanish();
            self.count("memory gone");
            self.befell(Fault::Vanish, format_args!("end {end}"));
            let later = self.now().saturating_add_ns(self.meddling.between(1, 100_000));
            self.run_until(later)?;
            if self.ends[end].is_over() {
                return Ok(());
            }
        }
        self.over(end, "its process died".into())
    }

    /// Waits until all that was sent has been read, and whose peer is gone knows it.
    fn settle(&mut self) -> Result<(), Violation> {
        let deadline = self.now().saturating_add_ns(self.plan.patience_ns());
        loop {
            for end in self.living.clone() {
                self.ends[end].sender.flush();
                self.look(end)?;
                self.probe(end)?;
            }
            let Some(pending) = self.pending() else { return Ok(()) };
            if self.now() >= deadline {
                let ms = self.plan.patience_ns() / 1_000_000;
                broken!("{ms} ms after faults have ended, {pending}");
            }
            self.run_until(self.now().saturating_add_ns(STEP_NS).min(deadline))?;
        }
    }

    /// What is not as it must be in the end.
    fn pending(&self) -> Option<String> {
        self.living.iter().find_map(|&end| {
            let (here, way) = (&self.ends[end], &self.ways[end]);
            if !here.is_up() {
                return Some(format!("end {end} is still connecting"));
            }
            if self.ends[peer_of(end)].is_over() || self.ends[peer_of(end)].given_back {
                return Some(format!("end {end} does not know that its peer is gone"));
            }
            let reader = &self.ends[peer_of(end)].receiver;
            let done = way.is_drained() && (!way.ended || reader.is_ended());
            (!done && !way.stopped).then(|| format!("end {end} has not got through: {way}"))
        })
    }

    fn report(&mut self, seed: u64) -> Report {
        for node in 0..self.plan.nodes {
            self.take_counters(node);
        }
        let net = &self.cluster.net;
        let mut faults = net.faults();
        for (fault, count) in &self.fate.faults {
            *faults.entry(*fault).or_default() += count;
        }
        Report {
            seed,
            nodes: self.plan.nodes,
            sent: self.ways.iter().map(|way| way.sent).sum(),
            read: self.ways.iter().map(|way| way.read).sum(),
            acts: self.acts.clone(),
            counters: self.counters.clone(),
            faults,
            packets: net.packets(),
            virtual_ns: self.now().ns_since(Time::ZERO),
            canary_strikes: self.planter.struck(),
            trace_hash: self.journal.hash() ^ net.trace_hash(),
        }
    }
}
