//! What children tell their INIT process: where they have connected a QP, for those that come after them. Nobody waits
//! for it: who finds no room tells nothing, and the next child connects again.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use elver::Gid;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::assignments::QpNumber;

/// The INIT process's end.
#[derive(Debug)]
pub(crate) struct Found {
    reports: OwnedFd,
    finds: Rc<OwnedFd>,
    /// Of which node the tables are: what children of before tell means nothing now.
    epoch: u64,
}

/// A child's end.
#[derive(Clone, Debug)]
pub(crate) struct Finder {
    finds: Rc<OwnedFd>,
    epoch: u64,
}

impl Found {
    pub(crate) fn new() -> io::Result<Found> {
        let (reports, finds) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Found { reports, finds: Rc::new(finds), epoch: 0 })
    }

    /// The tables are another node's from here on.
    pub(crate) fn begin_anew(&mut self) {
        self.epoch += 1;
    }

    /// What becomes readable when a child has told something.
    pub(crate) fn reports(&self) -> &OwnedFd {
        &self.reports
    }

    pub(crate) fn finder(&self) -> Finder {
        Finder { finds: self.finds.clone(), epoch: self.epoch }
    }

    /// What has been told, of these tables.
    pub(crate) fn take(&self) -> Vec<(QpNumber, Option<Gid>)> {
        let mut told = Vec::new();
        // A pipe's room: children that tell more meanwhile are heard the next time.
        let mut bytes = [0; 1 << 16];
        let Ok(length) = rustix::io::read(&self.reports, &mut bytes) else { return told };
        for line in bytes[..length].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match read(line) {
                Some((epoch, qp, destination)) if epoch == self.epoch => {
                    told.push((qp, destination));
                }
                Some(_) => {}
                None => eprintln!(
                    "elver-handler: a child's report: {:?} is none",
                    String::from_utf8_lossy(line)
                ),
            }
        }
        told
    }
}

fn read(line: &[u8]) -> Option<(u64, QpNumber, Option<Gid>)> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (epoch, qp) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let destination = words.next().filter(|_| words.next().is_none())?;
    let destination = match destination {
        "-" => None,
        gid => Some(gid.parse().ok()?),
    };
    Some((epoch, QpNumber(qp), destination))
}

impl Finder {
    /// A QP is connected to a destination now, or could not be found connected.
    pub(crate) fn tell(&self, qp: QpNumber, destination: Option<Gid>) {
        let destination = destination.map_or("-".to_string(), |gid| gid.to_string());
        let report = format!("{} {} {destination}\n", self.epoch, qp.0);
        // Without room nobody is told.
        let _ = rustix::io::write(&*self.finds, report.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_these_tables_is_heard() {
        let mut found = Found::new().unwrap();
        let before = found.finder();
        found.begin_anew();
        let finder = found.finder();
        assert_eq!(found.take(), []);
        let gid = |text: &str| text.parse::<Gid>().unwrap();
        before.tell(QpNumber(1), Some(gid("10.0.0.1")));
        finder.tell(QpNumber(2), Some(gid("::FFFF:10.0.0.2")));
        finder.tell(QpNumber(3), None);
        for nonsense in ["\n", "1\n", "1 2\n", "1 2 a\n", "1 2 :: b\n", "x 2 ::\n", "1 -1 ::\n"] {
            rustix::io::write(&*finder.finds, nonsense.as_bytes()).unwrap();
        }
        let told = vec![(QpNumber(2), Some(gid("10.0.0.2"))), (QpNumber(3), None)];
        assert_eq!(found.take(), told);
        // A pipe without room holds nobody up.
        for _ in 0..1 << 16 {
            finder.tell(QpNumber(2), None);
        }
        assert!(!found.take().is_empty());
    }
}
