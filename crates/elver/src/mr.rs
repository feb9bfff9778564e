use std::ptr::NonNull;

use elver_memory::{Reservation, SoftMemory};
use elver_portal::{Command, RefusalCode, memfd::HUGE_PAGE};
use elver_verbs::{AccessFlags, Memory, MemoryError, RemoteAddr, Sge};

use crate::arena::Piece;
use crate::inner::{Late, Outcome, UNEXPECTED};
use crate::regions::{Mapped, Region};
use crate::wait::Wait;
use crate::{Error, Session};

const PAGE: u64 = 4096;

/// A memory region. Dropped, it is deregistered: no new WR may use it, and peers cannot reach it
/// once what they know of it has run out, a second by default. [`Mr::deregister`] waits for that.
#[derive(Debug)]
pub struct Mr {
    session: Session,
    memory: SoftMemory,
    len: u64,
    lkey: u32,
    rkey: u32,
    /// Where it stands in the session's arena, if it does.
    piece: Option<Piece>,
    registered: bool,
    /// Other sessions of the process may have it too: it is read and written by whole words.
    shared: bool,
}

/// Memory of an [`Mr`] that other sessions of this process may register too ([`Session::attach`]): a plain value, which
/// may be sent to another thread. It keeps the memory mapped, and nothing registered.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    memory: SoftMemory,
    len: u64,
    lkey: u32,
}

/// What becomes of the memory that [`Mr::alloc`] makes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kind {
    pub(crate) huge: bool,
    pub(crate) shared: bool,
    /// The NUMA node where it is to lie, and whether its user has named that one.
    pub(crate) near: Option<u16>,
    pub(crate) is_named: bool,
}

impl Mr {
    /// A region of the session's arena, if it has room.
    pub(crate) fn carve(
        session: &Session,
        len: u64,
        access: AccessFlags,
    ) -> Result<Option<Mr>, Error> {
        let mut inner = session.inner.borrow_mut();
        inner.check_own()?;
        let Some(piece) = inner.arena.take(len) else { return Ok(None) };
        let arena = inner.link.arena();
        let (at, bytes) = (piece.offset as usize, len as usize);
        // SAFETY: the piece lies in the arena, which is mapped while the session lives; the region keeps
        // the session. No other region has the piece until this one is deregistered, and nothing holds
        // references into the arena.
        let memory = unsafe { SoftMemory::from_raw_parts(arena.add(at), bytes) };
        zero(&memory, piece.used.min(len));
        let (offset, addr) = (piece.offset, memory.base_addr());
        let request = match inner.ask(&Command::CarveMr { len, offset, addr, access }) {
            Ok(request) => request,
            Err(error) => {
                inner.arena.give_back(piece);
                return Err(error);
            }
        };
        match inner.outcome(request, Wait::for_an_answer()) {
            Ok(Outcome::Mr { lkey, rkey, .. }) => {
                inner.regions.add(lkey, region(&memory, len, access), memory_of(&memory, false));
                drop(inner);
                let session = session.clone();
                let piece = Some(piece);
                Ok(Some(Mr {
                    session,
                    memory,
                    len,
                    lkey,
                    rkey,
                    piece,
                    registered: true,
                    shared: false,
                }))
            }
            Ok(_) => Err(UNEXPECTED),
            Err(error) => {
                inner.withhold(request, piece);
                Err(error)
            }
        }
    }

    /// The region that a session has which was made ahead: it begins the arena, and the node has zeroed
    /// it. Nothing if the arena has no room for it.
    pub(crate) fn inherited(
        session: &Session,
        len: u64,
        (lkey, rkey): (u32, u32),
        access: AccessFlags,
    ) -> Option<Mr> {
        let mut inner = session.inner.borrow_mut();
        let piece = inner.arena.take(len)?;
        // SAFETY: as in `carve`.
        let memory = unsafe {
            let start = inner.link.arena().add(piece.offset as usize);
            SoftMemory::from_raw_parts(start, len as usize)
        };
        inner.regions.add(lkey, region(&memory, len, access), memory_of(&memory, false));
        drop(inner);
        let (session, piece) = (session.clone(), Some(piece));
        Some(Mr { session, memory, len, lkey, rkey, piece, registered: true, shared: false })
    }

    /// A region of memory that the node makes.
    pub(crate) fn alloc(
        session: &Session,
        len: u64,
        access: AccessFlags,
        kind: Kind,
    ) -> Result<Mr, Error> {
        let huge = kind.huge;
        // Addresses in WRs are this process's, so that the place must be known before.
        let page = if huge { HUGE_PAGE } else { PAGE };
        let rounded = len.max(1).checked_next_multiple_of(page).unwrap_or(len);
        let place = Reservation::new(rounded, page)?;
        let mut inner = session.inner.borrow_mut();
        let (request, outcome) = inner.allocate((len, place.addr()), access, kind)?;
        let Outcome::Mr { lkey, rkey, file_bytes } = outcome else { return Err(UNEXPECTED) };
        let mapped = inner
            .link
            .file(request)
            .and_then(|file| Ok(place.map_file(file, file_bytes.min(rounded))?));
        // A task's waking may have been read with it.
        inner.rouse();
        let memory = match mapped {
            Ok(memory) => memory,
            Err(error) => {
                inner.let_go(Late::Region { lkey, piece: None });
                return Err(error);
            }
        };
        inner.regions.add(lkey, region(&memory, len, access), memory_of(&memory, kind.shared));
        drop(inner);
        let session = session.clone();
        let shared = kind.shared;
        Ok(Mr { session, memory, len, lkey, rkey, piece: None, registered: true, shared })
    }

    /// Memory that this session, or another of the process, has already.
    pub(crate) fn attach(
        session: &Session,
        shared: &SharedMemory,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        let SharedMemory { memory, len, lkey } = shared.clone();
        let mut inner = session.inner.borrow_mut();
        let command = Command::ShareMr { lkey, addr: memory.base_addr(), access };
        let Outcome::Mr { lkey, rkey, .. } = inner.call(&command)? else { return Err(UNEXPECTED) };
        inner.regions.add(lkey, region(&memory, len, access), memory_of(&memory, true));
        drop(inner);
        let session = session.clone();
        Ok(Mr { session, memory, len, lkey, rkey, piece: None, registered: true, shared: true })
    }

    /// # Safety
    /// As [`Session::register`].
    pub(crate) unsafe fn register(
        session: &Session,
        start: *mut u8,
        len: u64,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        let bytes = usize::try_from(len).ok().filter(|_| len > 0);
        let (Some(start), Some(bytes)) = (NonNull::new(start), bytes) else {
            return Err(Error::Invalid { what: "memory to register has an address and a length" });
        };
        let addr = start.as_ptr() as u64;
        let command = Command::RegisterMr { addr, len, access };
        let mut inner = session.inner.borrow_mut();
        let outcome = match inner.call(&command) {
            Err(Error::Refused { code: RefusalCode::Permission, .. }) if inner.link.let_in() => {
                inner.call(&command)?
            }
            outcome => outcome?,
        };
        let Outcome::Mr { lkey, rkey, .. } = outcome else { return Err(UNEXPECTED) };
        // SAFETY: the caller keeps it mapped until the region is deregistered.
        let memory = unsafe { SoftMemory::from_raw_parts(start, bytes) };
        inner.regions.add(lkey, region(&memory, len, access), memory_of(&memory, false));
        drop(inner);
        let session = session.clone();
        Ok(Mr { session, memory, len, lkey, rkey, piece: None, registered: true, shared: false })
    }

    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.memory.base_addr()
    }

    /// The first byte. The node and peers may write the region at any time, as its access flags
    /// allow.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Key for SGEs of this session's WRs.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Key for peers.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Its memory, for other sessions of this process: of a region that [`Session::alloc_shared`] or
    /// [`Session::attach`] gave. Good for as long as this region is registered.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a region of another kind.
    pub fn share(&self) -> Result<SharedMemory, Error> {
        if !self.shared {
            let what = "the region's memory is this session's alone, and a child's copy of it is the \
                        child's; allocate it by alloc_shared";
            return Err(Error::Invalid { what });
        }
        Ok(SharedMemory { memory: self.memory.clone(), len: self.len, lkey: self.lkey })
    }

    /// A piece of the region, for a WR. Whether it lies inside is checked when it is posted.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.addr().wrapping_add(offset), length, lkey: self.lkey }
    }

    /// The byte at `offset` as peers name it.
    pub fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr().wrapping_add(offset), rkey: self.rkey }
    }

    /// Copies bytes out of the region.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they do not lie in it; [`Error::Forked`] in a child that has left the region to its parent
    /// ([`Session::leave_to_parent`]).
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), Error> {
        self.check_there()?;
        self.load(offset, dst).map_err(|_| OUTSIDE)
    }

    /// Copies bytes into the region.
    ///
    /// # Errors
    /// As [`Mr::read`].
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), Error> {
        self.check_there()?;
        self.store(offset, src).map_err(|_| OUTSIDE)
    }

    /// The word at `offset`, in the host's byte order.
    ///
    /// # Errors
    /// As [`Mr::read`].
    pub fn read_u64(&self, offset: u64) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Sets the word at `offset`, in the host's byte order.
    ///
    /// # Errors
    /// As [`Mr::read`].
    pub fn write_u64(&self, offset: u64, value: u64) -> Result<(), Error> {
        self.write(offset, &value.to_ne_bytes())
    }

    /// Whether what stands in its place is the region.
    #[inline]
    fn check_there(&self) -> Result<(), Error> {
        let is_left = self.piece.is_some() && self.session.inner.is_left();
        if is_left { Err(Error::Forked) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn load(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryError> {
        if self.shared {
            return self.memory.read_words(offset, dst);
        }
        self.memory.read(offset, dst)
    }

    #[inline]
    pub(crate) fn store(&self, offset: u64, src: &[u8]) -> Result<(), MemoryError> {
        if self.shared {
            return self.memory.write_words(offset, src);
        }
        self.memory.write(offset, src)
    }

    #[cfg(feature = "kv")]
    pub(crate) fn memory(&self) -> &SoftMemory {
        &self.memory
    }

    /// Deregisters the region, and returns when nobody can touch the memory any more: neither work
    /// in flight nor a peer that remembers it (KRCORE, section 4.2).
    ///
    /// # Errors
    /// [`Error::NodeGone`], with which nobody can touch it any more either, but for processes of this user that reach
    /// it themselves, for as long as they do not notice: 50 ms as a rule. [`crate::RefusalCode::Busy`] if one of those was
    /// stopped in the middle of an access, and waited for long enough: the region is gone all the same. [`Error::Silent`]
    /// and [`Error::TimedOut`] of a node that stands still: it may touch the memory until it has gone on, or the session is over.
    pub fn deregister(mut self) -> Result<(), Error> {
        self.registered = false;
        self.session.inner.borrow_mut().deregister(self.lkey, self.piece.take())
    }
}

impl SharedMemory {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// What WRs are checked against.
fn memory_of(memory: &SoftMemory, shared: bool) -> Mapped {
    Mapped { memory: memory.clone(), shared }
}

fn region(memory: &SoftMemory, len: u64, access: AccessFlags) -> Region {
    let writable = access.contains(AccessFlags::LOCAL_WRITE);
    Region { addr: memory.base_addr(), len, writable }
}

const OUTSIDE: Error = Error::Invalid { what: "the bytes do not lie in the memory region" };

/// Zeroes the first bytes of a memory, which has as many.
fn zero(memory: &SoftMemory, bytes: u64) {
    const ZEROS: [u8; 512] = [0; 512];
    let mut offset = 0;
    while offset < bytes {
        let some = (bytes - offset).min(512);
        // The range lies inside.
        let _ = memory.write(offset, &ZEROS[..some as usize]);
        offset += some;
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if self.registered {
            let (lkey, piece) = (self.lkey, self.piece.take());
            self.session.inner.borrow_mut().let_go(Late::Region { lkey, piece });
        }
    }
}
