//! The order in which perftest's two ends tell each other what: in every exchange the client
//! speaks first. How often the keys travel before a test and behind it is a matter of the program.

use anyhow::Result;
use elver_verbs::Mtu;

use crate::peers::{Role, Session};
use crate::perftest::args::PeerTest;
use crate::perftest::message::{
    self, KEYS_LEN, Keys, MTU_LEN, REPORT_FIELD, RateReport, VERSION_LEN,
};

/// What both ends tell of their machines: the bytes that a client's accesses go around in, and the
/// step between them. Both ends take the larger.
const CYCLE: u32 = 4096;
const CACHE_LINE: u32 = 64;

/// What a program does, as its test.
pub(crate) struct Script {
    /// Times that the keys travel before the QPs are connected.
    pub(crate) before: u32,
    /// Times that they travel afterwards, before the test.
    pub(crate) after: u32,
    /// Whether the keys travel once more behind the test, and the rate is reported.
    pub(crate) reports: bool,
}

impl PeerTest {
    pub(crate) fn script(self) -> Script {
        match self {
            PeerTest::WriteBw | PeerTest::ReadBw => Script { before: 1, after: 2, reports: true },
            PeerTest::ReadLat => Script { before: 2, after: 2, reports: false },
            PeerTest::SendLat => Script { before: 1, after: 3, reports: false },
        }
    }
}

/// What the two ends agreed on.
pub(crate) struct Agreed {
    pub(crate) version: String,
    pub(crate) mtu: Mtu,
    /// Bytes that accesses go around in, and the step between them.
    pub(crate) cycle: u64,
    pub(crate) line: u64,
}

impl Session {
    /// Sends ours and receives theirs, the client first.
    fn swap<const N: usize>(&mut self, ours: [u8; N], what: &str) -> Result<[u8; N]> {
        let mut theirs = [0; N];
        if self.role == Role::Client {
            self.send(&ours, what)?;
        }
        self.receive(&mut theirs, what)?;
        if self.role == Role::Server {
            self.send(&ours, what)?;
        }
        Ok(theirs)
    }

    /// The first part: versions, machines and path MTUs.
    pub(crate) fn agree(&mut self, own_mtu: Mtu) -> Result<Agreed> {
        let theirs: [u8; VERSION_LEN] = self.swap(message::write_version(), "the version")?;
        let version = message::read_version(&theirs)?;
        let cycle = u32::from_be_bytes(self.swap(CYCLE.to_be_bytes(), "the page size")?);
        let line = u32::from_be_bytes(self.swap(CACHE_LINE.to_be_bytes(), "the cache line size")?);
        anyhow::ensure!(
            cycle <= 1 << 20 && line <= 1 << 16,
            "the peer sent a page size of {cycle} and a cache line size of {line} bytes"
        );
        let theirs: [u8; MTU_LEN] = self.swap(message::write_mtu(own_mtu), "the path MTU")?;
        let mtu = message::read_mtu(&theirs)?.min(own_mtu);
        let (cycle, line) = (cycle.max(CYCLE).into(), line.max(CACHE_LINE).into());
        Ok(Agreed { version, mtu, cycle, line })
    }

    /// Swaps keys.
    pub(crate) fn shake(&mut self, own: &Keys, what: &str) -> Result<Keys> {
        let theirs: [u8; KEYS_LEN] = self.swap(own.write(), what)?;
        Keys::read(&theirs)
    }

    /// Swaps reports.
    pub(crate) fn report(&mut self, own: &RateReport) -> Result<RateReport> {
        let mut theirs = [[0; REPORT_FIELD]; 5];
        for (theirs, ours) in theirs.iter_mut().zip(own.write()) {
            *theirs = self.swap(ours, "the report")?;
        }
        Ok(RateReport::read(theirs))
    }

    /// The last part: keys once more, and a word that nobody answers.
    pub(crate) fn part(&mut self, own: &Keys) -> Result<()> {
        self.shake(own, "the keys that end the test")?;
        // The peer has all that it waits for: it may be gone already. We hear its last word, so
        // that our end of the connection does not close in its face.
        let _ = self.send(message::DONE, "\"done\"");
        let _ = self.receive(&mut [0; message::DONE.len()], "\"done\"");
        Ok(())
    }
}
