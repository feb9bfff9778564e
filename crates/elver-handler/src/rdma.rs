//! The RDMA of a request.

use std::collections::BTreeMap;
use std::rc::Rc;

use elver::{
    AccessFlags, Completed, ConnectOptions, Connecting, Gid, Mr, Payload, RemoteAddr, SendFlags,
    SendOp, SendWr, Session, Vqp, VqpOptions, Wc,
};

use crate::assignments::QpNumber;
use crate::error::Error;
use crate::found::Finder;

/// Where the node's socket is.
pub(crate) const NODE: &str = "ELVER_SOCKET";
/// Bytes of the memory region that each request has (Swift, section 4.1.3). A larger one is [`Session::alloc`].
pub(crate) const MR_BYTES: u64 = 32 << 10;

/// A session, connections by destination, and registered memory.
#[derive(Debug)]
pub struct Rdma {
    /// The session at the node: device and protection domain in one.
    pub session: Session,
    /// 32 KB, zeroed, the request's own.
    pub mr: Mr,
    /// Whether it was made ahead for this child.
    pub inherited: bool,
    pub(crate) connect: ConnectOptions,
    pub(crate) vqps: BTreeMap<Gid, Vqp>,
    pub(crate) begun: BTreeMap<Gid, (Vqp, Rc<Connecting>)>,
    pub(crate) unassigned: Option<Unassigned>,
}

/// Inherited QPs that go nowhere yet, or not where they should, and who is told when one does.
#[derive(Debug)]
pub(crate) struct Unassigned {
    pub(crate) qps: Vec<(QpNumber, Option<Gid>, Vqp)>,
    pub(crate) finder: Finder,
}

impl Unassigned {
    /// One of them, connected; none if all are in use.
    fn connect(&mut self, gid: Gid, options: ConnectOptions) -> Result<Option<Vqp>, Error> {
        let find = |wanted| self.qps.iter().position(|(_, to, _)| *to == wanted);
        let Some(at) = find(Some(gid)).or_else(|| find(None)) else { return Ok(None) };
        let (qp, to, vqp) = &self.qps[at];
        if let Err(error) = vqp.qconnect_with(gid, 0, options) {
            if to.is_some() {
                self.finder.tell(*qp, None);
            }
            return Err(error.into());
        }
        let (qp, _, vqp) = self.qps.remove(at);
        self.finder.tell(qp, Some(gid));
        Ok(Some(vqp))
    }
}

impl Rdma {
    pub(crate) fn own(session: Session, connect: ConnectOptions) -> Result<Rdma, Error> {
        let mr = session.alloc(MR_BYTES, AccessFlags::LOCAL_WRITE)?;
        let (vqps, begun) = (BTreeMap::new(), BTreeMap::new());
        Ok(Rdma { session, mr, inherited: false, connect, vqps, begun, unassigned: None })
    }

    /// The connection to a destination, by its GID, in whichever spelling. One that nobody made ahead is made now, by an inherited QP that goes nowhere yet
    /// if there is one: those that come after this process find it connected.
    ///
    /// # Errors
    /// [`Error::NoGid`], and [`Error::Rdma`] if it cannot be connected to.
    pub fn vqp(&mut self, destination: &str) -> Result<&Vqp, Error> {
        let gid: Gid = destination.parse().map_err(|_| Error::NoGid(destination.to_string()))?;
        if !self.vqps.contains_key(&gid) {
            let vqp = match self.begun.remove(&gid) {
                Some((vqp, going)) => {
                    going.wait(None)?;
                    vqp
                }
                None => {
                    let (unassigned, options) = (self.unassigned.as_mut(), self.connect);
                    let connect = |qps: &mut Unassigned| qps.connect(gid, options);
                    match unassigned.map(connect).transpose()? {
                        Some(Some(vqp)) => vqp,
                        Some(None) | None => {
                            let vqp = self.session.create_vqp(VqpOptions::default())?;
                            vqp.qconnect_with(gid, 0, options)?;
                            vqp
                        }
                    }
                }
            };
            self.vqps.insert(gid, vqp);
        }
        Ok(&self.vqps[&gid])
    }

    /// The destinations that it has connections to now.
    pub fn connected(&self) -> impl Iterator<Item = Gid> {
        self.vqps.keys().copied()
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
