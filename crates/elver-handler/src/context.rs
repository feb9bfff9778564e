//! What a handler learns of its request, and its RDMA.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use elver::{
    AccessFlags, Completed, Connecting, Mr, Payload, RemoteAddr, SendFlags, SendOp, SendWr,
    Session, Vqp, VqpOptions, Wc,
};

use crate::ahead::{Ahead, Which};
use crate::api::Invocation;
use crate::error::Error;
use crate::init::NODE;

/// Bytes of the memory region that each request has (Swift, section 4.1.3). A larger one is [`Session::alloc`].
pub(crate) const MR_BYTES: u64 = 32 << 10;

/// Where a request's RDMA comes from.
pub(crate) enum Source<'a> {
    /// The INIT process's own.
    Own(&'a mut Ahead),
    /// A session that its parent assigned.
    Inherit(&'a Ahead, Which),
    /// Nobody made anything.
    Open,
}

/// A request.
pub struct Context<'a> {
    /// Its number, as Lambda has them.
    pub request_id: String,
    /// How it was started: `cold`, `warm` or `fork`.
    pub start: String,
    /// GIDs of the function's configuration.
    pub destinations: Vec<String>,
    deadline: SystemTime,
    source: Source<'a>,
    rdma: Option<Rdma>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(
        invocation: &Invocation,
        destinations: Vec<String>,
        source: Source<'a>,
    ) -> Context<'a> {
        Context {
            request_id: invocation.id.clone(),
            start: invocation.start.clone(),
            destinations,
            deadline: invocation.deadline,
            source,
            rdma: None,
        }
    }

    /// How long until this process is killed.
    pub fn time_left(&self) -> Duration {
        self.deadline.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO)
    }

    /// The request's RDMA. A child takes its session over at the first call.
    ///
    /// # Errors
    /// [`Error::NoNode`] on a platform without one; else what the node says.
    pub fn rdma(&mut self) -> Result<&mut Rdma, Error> {
        let rdma = match self.rdma.take() {
            Some(rdma) => rdma,
            None => match &mut self.source {
                Source::Own(ahead) => ahead.own()?,
                Source::Inherit(ahead, which) => ahead.inherit(*which)?,
                Source::Open => match std::env::var_os(NODE) {
                    Some(path) if std::path::Path::new(&path).exists() => {
                        Rdma::own(Session::connect(path)?)?
                    }
                    _ => return Err(Error::NoNode),
                },
            },
        };
        Ok(self.rdma.insert(rdma))
    }
}

/// A session, connections by destination, and registered memory.
#[derive(Debug)]
pub struct Rdma {
    /// The session at the node: device and protection domain in one.
    pub session: Session,
    /// 32 KB, zeroed, the request's own.
    pub mr: Mr,
    /// Whether it was made ahead for this child.
    pub inherited: bool,
    pub(crate) vqps: BTreeMap<String, Vqp>,
    pub(crate) begun: BTreeMap<String, (Vqp, Rc<Connecting>)>,
}

impl Rdma {
    pub(crate) fn own(session: Session) -> Result<Rdma, Error> {
        let mr = session.alloc(MR_BYTES, AccessFlags::LOCAL_WRITE)?;
        Ok(Rdma { session, mr, inherited: false, vqps: BTreeMap::new(), begun: BTreeMap::new() })
    }

    /// The connection to a destination. One that nobody made ahead is made now.
    ///
    /// # Errors
    /// [`Error::NoGid`], and [`Error::Rdma`] if it cannot be connected to.
    pub fn vqp(&mut self, destination: &str) -> Result<&Vqp, Error> {
        if !self.vqps.contains_key(destination) {
            let vqp = match self.begun.remove(destination) {
                Some((vqp, going)) => {
                    going.wait(None)?;
                    vqp
                }
                None => {
                    let gid =
                        destination.parse().map_err(|_| Error::NoGid(destination.to_string()))?;
                    let vqp = self.session.create_vqp(VqpOptions::default())?;
                    vqp.qconnect(gid, 0)?;
                    vqp
                }
            };
            self.vqps.insert(destination.to_string(), vqp);
        }
        Ok(&self.vqps[destination])
    }

    /// READs bytes of a peer's memory into [`Rdma::mr`], and waits for them.
    ///
    /// # Errors
    /// As [`Rdma::vqp`], and what the operation comes to.
    pub fn read(
        &mut self,
        destination: &str,
        offset: u64,
        length: u32,
        from: RemoteAddr,
    ) -> Result<(), Error> {
        self.transfer(destination, offset, length, SendOp::Read(from))
    }

    /// WRITEs bytes of [`Rdma::mr`] into a peer's memory, and waits for the acknowledgement.
    ///
    /// # Errors
    /// As [`Rdma::vqp`], and what the operation comes to.
    pub fn write(
        &mut self,
        destination: &str,
        offset: u64,
        length: u32,
        to: RemoteAddr,
    ) -> Result<(), Error> {
        self.transfer(destination, offset, length, SendOp::Write(to))
    }

    fn transfer(
        &mut self,
        destination: &str,
        offset: u64,
        length: u32,
        op: SendOp,
    ) -> Result<(), Error> {
        let sges = [self.mr.sge(offset, length)];
        let vqp = self.vqp(destination)?;
        let payload = Payload::Sges(&sges);
        let wr = SendWr { wr_id: 0, op, flags: SendFlags::SIGNALED, payload, dest: None };
        vqp.post_send(&[wr]).map_err(elver::Error::from)?;
        let mut wcs = [Wc::default()];
        vqp.wait_cq(&mut wcs, None)?;
        wcs[0].succeeded()?;
        Ok(())
    }
}
