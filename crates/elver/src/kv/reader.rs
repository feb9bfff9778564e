use elver_kv::{Descriptor, Lookup, Read, Step, Value};
use elver_verbs::{AccessFlags, Gid, Payload, SendFlags, SendOp, SendWr, Wc};

use crate::Error;
use crate::{Completed, Mr, Session, Vqp, VqpOptions};

/// Reads a peer's store with one-sided READs over a VQP of its own.
#[derive(Debug)]
pub struct Reader {
    descriptor: Descriptor,
    vqp: Vqp,
    /// Where a cluster lands.
    landing: Mr,
    /// It is read from there.
    cluster: Vec<u8>,
    /// Names the READs, so that the end of one that nobody waited for is not taken for another's.
    posted: u64,
    counters: ReaderCounters,
}

/// What a reader has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderCounters {
    /// Look-ups that had an outcome.
    pub lookups: u64,
    /// READs that were answered.
    pub reads: u64,
    /// Those of them that met the owner's writing, and were made again.
    pub torn: u64,
}

impl Reader {
    /// Connects to the node where a store is.
    ///
    /// # Errors
    /// As [`Session::create_vqp`], [`Vqp::qconnect`] and [`Session::alloc`].
    pub fn connect(session: &Session, gid: Gid, descriptor: Descriptor) -> Result<Reader, Error> {
        let len = descriptor.layout().cluster_bytes();
        let landing = session.alloc(len as u64, AccessFlags::LOCAL_WRITE)?;
        let vqp = session.create_vqp(VqpOptions::default())?;
        vqp.qconnect(gid, 0)?;
        let (cluster, counters) = (vec![0; len], ReaderCounters::default());
        Ok(Reader { descriptor, vqp, landing, cluster, posted: 0, counters })
    }

    /// The value of a key: none if the store did not hold it.
    ///
    /// # Errors
    /// [`Error::Lookup`]: a key of another length, a store that another one has replaced, or one that is broken;
    /// [`super::LookupError::Unstable`] where each READ met the owner's writing, which may be tried again.
    /// As [`crate::Vqp::wait_cq`], and [`Error::Completion`] if a READ failed; after a failed READ the VQP must be connected anew.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value>, Error> {
        let mut lookup = Lookup::new(&self.descriptor, key)?;
        let mut torn = 0;
        loop {
            self.fetch(lookup.read())?;
            self.counters.reads += 1;
            let step = lookup.feed(&self.cluster);
            if let Ok(Step::Done(value)) = step {
                self.counters.lookups += 1;
                return Ok(value);
            }
            step?;
            if lookup.retries() > torn {
                torn = lookup.retries();
                self.counters.torn += 1;
                // The owner may need the processor to go on.
                std::thread::yield_now();
            }
        }
    }

    /// The VQP, to connect it anew, to look how it is.
    pub fn vqp(&self) -> &Vqp {
        &self.vqp
    }

    /// The store that it reads.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// What it has done.
    pub fn counters(&self) -> ReaderCounters {
        self.counters
    }

    /// Carries a READ out.
    fn fetch(&mut self, read: Read) -> Result<(), Error> {
        self.posted += 1;
        let sges = [self.landing.sge(0, read.len)];
        let (op, payload) = (SendOp::Read(read.remote), Payload::Sges(&sges));
        let flags = SendFlags::SIGNALED;
        self.vqp.post_send(&[SendWr { wr_id: self.posted, op, flags, payload, dest: None }])?;
        let mut wcs = [Wc::default()];
        loop {
            self.vqp.wait_cq(&mut wcs, None)?;
            wcs[0].succeeded()?;
            // An older one is of a look-up whose wait was ended. READs land in order.
            if wcs[0].wr_id == self.posted {
                return self.landing.read(0, &mut self.cluster);
            }
        }
    }
}
