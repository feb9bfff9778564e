//! How who waits for an answer learns that none will come: it was lost with the pair, while this host was cut off.
//!
//! It asks the listener whether it has the offer still. The question goes to the listener's port on a VQP of its own, as
//! wakings do ([`crate::ringer`]): a port that is full refuses it, and that must cost neither the offer nor the ring that
//! is made of it meanwhile. No answer means that the listener has it, or that it was not asked: who waits asks again.

use std::time::{Duration, Instant};

use elver::{
    AccessFlags, Completed, ConnectOptions, Connecting, Gid, Mr, RecvWr, RefusalCode, Session, Vqp,
    VqpOptions, Wc, WcOpcode,
};

use crate::Error;
use crate::greeting::{Greeting, Place};
use crate::inbox::tell;
use crate::wire::BELL_BYTES;

/// After so long without an answer it asks for the first time, and then after twice as long each time: a listener may be
/// long in looking.
pub(crate) const FIRST: Duration = Duration::from_secs(1);
/// How often it looks for an answer until it asks again.
const LOOKS: u32 = 64;

#[derive(Debug)]
pub(crate) struct Asker {
    /// None before the offer has come to the port: what is asked there would overtake it.
    at: Option<Instant>,
    waited: Duration,
    way: Option<Way>,
}

/// A question that is under way.
#[derive(Debug)]
struct Way {
    vqp: Vqp,
    answer: Mr,
    /// As long as the VQP is not connected.
    asked: Option<Connecting>,
    /// When an answer was looked for last.
    looked: Instant,
}

impl Asker {
    pub(crate) fn new() -> Asker {
        Asker { at: None, waited: FIRST, way: None }
    }

    /// The offer has come to the listener's port.
    pub(crate) fn begin(&mut self) {
        self.at = Some(Instant::now() + self.waited);
    }

    /// When it is to be looked after; none as long as the offer has not come to the port.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let looks = self.way.as_ref().map(|way| way.looked + self.waited / LOOKS);
        self.at.into_iter().chain(looks).min()
    }

    /// Asks a listener for an offer when it is time to, and looks for what it says; what that is, if it has said
    /// something. What ends a question ends nothing else.
    ///
    /// # Errors
    /// Nobody has the port any more, which it has as long as an end of its pairs: so nobody has the offer.
    pub(crate) fn tend(
        &mut self,
        session: &Session,
        to: (Gid, u16),
        offer: Place,
    ) -> Result<Option<Greeting>, Error> {
        if self.at.is_some_and(|at| at <= Instant::now()) {
            self.waited *= 2;
            self.begin();
            self.way = Way::begin(session, to).ok();
        }
        let Some(way) = &mut self.way else { return Ok(None) };
        way.looked = Instant::now();
        match way.look(offer) {
            Ok(said) => Ok(said),
            Err(_) => {
                let gone = way.gone();
                self.way = None;
                gone.map_or(Ok(None), Err)
            }
        }
    }
}

impl Way {
    fn begin(session: &Session, (gid, port): (Gid, u16)) -> Result<Way, Error> {
        let options = VqpOptions { max_send_wr: 1, max_recv_wr: 1, ..VqpOptions::default() };
        let answer = session.alloc(u64::from(BELL_BYTES), AccessFlags::LOCAL_WRITE)?;
        let vqp = session.create_vqp(options)?;
        vqp.post_recv(&[RecvWr { wr_id: 0, sges: &[answer.sge(0, BELL_BYTES)] }])?;
        let asked = Some(vqp.qconnect_start(gid, port, ConnectOptions::default())?);
        Ok(Way { vqp, answer, asked, looked: Instant::now() })
    }

    /// That nobody has the port, if that has ended it.
    fn gone(&self) -> Option<Error> {
        let failure = self.vqp.failure()?;
        let is_gone =
            matches!(failure, elver::Error::Refused { code: RefusalCode::NoSuchPort, .. });
        is_gone.then(|| failure.into())
    }

    fn look(&mut self, offer: Place) -> Result<Option<Greeting>, Error> {
        if let Some(asked) = &self.asked {
            if asked.poll()?.is_none() {
                return Ok(None);
            }
            self.asked = None;
            tell(&self.vqp, &Greeting::Waiting(offer))?;
        }
        let mut wcs = [Wc::default()];
        while self.vqp.poll_cq(&mut wcs)? > 0 {
            let wc = wcs[0].succeeded()?;
            if wc.opcode == WcOpcode::Recv {
                let mut bytes = vec![0; wc.byte_len.min(BELL_BYTES) as usize];
                self.answer.read(0, &mut bytes)?;
                return Ok(Greeting::decode(&bytes).ok());
            }
        }
        self.vqp.failure().map_or(Ok(None), |failure| Err(failure.into()))
    }
}
