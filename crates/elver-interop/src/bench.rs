//! Both ends together.

use std::time::Duration;

use anyhow::Result;

use crate::axes::Transport;
use crate::ours::Ours;
use crate::side::{About, Connect, Done, QpRef, Send, Side};
use crate::theirs::{self, Agent, command, number};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Ours,
    Theirs,
}

impl Who {
    pub(crate) fn other(self) -> Who {
        match self {
            Who::Ours => Who::Theirs,
            Who::Theirs => Who::Ours,
        }
    }
}

pub(crate) struct Bench {
    pub(crate) ours: Ours,
    theirs: Agent,
}

impl Bench {
    pub(crate) fn new(ours: Ours, theirs: Agent) -> Bench {
        Bench { ours, theirs }
    }

    /// Runs one end's part.
    pub(crate) fn at<R>(&mut self, who: Who, part: impl FnOnce(&mut dyn Side) -> R) -> R {
        let Bench { ours, theirs } = self;
        match who {
            Who::Ours => part(ours),
            Who::Theirs => part(&mut Theirs { agent: theirs, ours }),
        }
    }

    /// Ends the guest's program.
    pub(crate) fn quit(&mut self) -> Result<()> {
        let Bench { ours, theirs } = self;
        theirs.call("quit", Duration::ZERO, &mut || ours.progress()).map(drop)
    }
}

/// The guest's end, while our device is driven.
struct Theirs<'a> {
    agent: &'a mut Agent,
    ours: &'a mut Ours,
}

impl Theirs<'_> {
    fn call(&mut self, command: &str) -> Result<Vec<String>> {
        self.call_and_wait(command, Duration::ZERO)
    }

    fn call_and_wait(&mut self, command: &str, wait: Duration) -> Result<Vec<String>> {
        let ours = &mut *self.ours;
        self.agent.call(command, wait, &mut || ours.progress())
    }
}

impl Side for Theirs<'_> {
    fn about(&mut self) -> Result<About> {
        theirs::about(&self.call("about")?)
    }

    fn fill(&mut self, offset: u64, length: u32, seed: u32) -> Result<()> {
        self.call(&format!("fill {offset} {length} {seed}")).map(drop)
    }

    fn check(&mut self, offset: u64, length: u32, seed: u32) -> Result<Option<u32>> {
        first_at(&self.call(&format!("check {offset} {length} {seed}"))?)
    }

    fn mixed(&mut self, offset: u64, length: u32, [a, b]: [u32; 2]) -> Result<Option<u32>> {
        first_at(&self.call(&format!("mixed {offset} {length} {a} {b}"))?)
    }

    fn word(&mut self, offset: u64) -> Result<u64> {
        number(&self.call(&format!("word {offset}"))?, 0)
    }

    fn qp(&mut self, transport: Transport) -> Result<QpRef> {
        let answer = self.call(&command::qp(transport))?;
        Ok(QpRef { id: number(&answer, 0)? as usize, qpn: number(&answer, 1)? as u32 })
    }

    fn connect(&mut self, qp: QpRef, connect: &Connect) -> Result<()> {
        self.call(&command::connect(qp, connect)).map(drop)
    }

    fn destroy(&mut self, qp: QpRef) -> Result<()> {
        self.call(&format!("destroy {}", qp.id)).map(drop)
    }

    fn window(&mut self, qp: QpRef, offset: u64, length: u32) -> Result<u32> {
        Ok(number(&self.call(&format!("window {} {offset} {length}", qp.id))?, 0)? as u32)
    }

    fn recv(&mut self, qp: QpRef, wr_id: u64, offset: u64, length: u32) -> Result<()> {
        self.call(&format!("recv {} {wr_id} {offset} {length}", qp.id)).map(drop)
    }

    fn send(&mut self, qp: QpRef, send: &Send) -> Result<()> {
        self.call(&command::send(qp, send)).map(drop)
    }

    fn poll(&mut self, qp: QpRef, count: usize, milliseconds: u64) -> Result<Vec<Done>> {
        let command = format!("poll {} {count} {milliseconds}", qp.id);
        let answer = self.call_and_wait(&command, Duration::from_millis(milliseconds))?;
        answer.iter().map(|word| theirs::done(word)).collect()
    }

    fn is_in_error(&mut self, qp: QpRef) -> Result<bool> {
        theirs::is_error_state(&self.call(&format!("state {}", qp.id))?)
    }
}

/// The place that an answer tells of, if there is one.
fn first_at(answer: &[String]) -> Result<Option<u32>> {
    match answer.first().map(String::as_str) {
        Some("-1") => Ok(None),
        _ => Ok(Some(number(answer, 0)? as u32)),
    }
}
