//! Memory regions and windows, and the protection checks of IBTA vol. 1, 10.6 and 9.4.1.

use elver_verbs::{
    AccessFlags, BindMw, Memory, MemoryError, Mr, MrInfo, Mw, MwInfo, ObjectKind, Pd, Sge,
    VerbsError, WcStatus, check_region,
};

use crate::aside::{Desk, ERRAND_BYTES_MAX};
use crate::maybe_pd::MaybePd;
use crate::place::{Place, Refused};
use crate::reach::Reach;
use crate::table::Table;
use elver_random::Rng;

/// Every region and window of a device, under one space of keys: the upper 24 bits of an lkey or
/// rkey are the object's id, the low 8 bits a tag.
#[derive(Debug)]
pub(crate) struct Regions<M> {
    keys: Table<Key<M>>,
    max_mr_size: u64,
    /// Copies that wait.
    pub(crate) desk: Desk<M>,
}

#[derive(Debug)]
enum Key<M> {
    Region(Region<M>),
    Window(Window),
}

#[derive(Debug)]
struct Region<M> {
    pd: u32,
    tag: u8,
    memory: M,
    /// Offset in the memory of its first byte.
    first: u64,
    base: u64,
    length: u64,
    access: AccessFlags,
    windows: u32,
    /// Copies of it that are under way elsewhere.
    errands: u32,
}

#[derive(Debug)]
struct Window {
    pd: u32,
    tag: u8,
    /// Type 1: any QP of its PD may bind it, and again while it is bound.
    any_qp: bool,
    bound: Option<Bound>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    region: u32,
    /// The one QP that may use it; none where any of the PD may.
    qpn: Option<u32>,
    base: u64,
    length: u64,
    access: AccessFlags,
}

/// What is to be different about a region: what is none stays.
#[derive(Debug)]
pub struct MrChange<M> {
    /// Other memory, and the address of its first byte for WRs and peers.
    pub memory: Option<(M, u64)>,
    /// Another PD.
    pub pd: Option<Pd>,
    /// Other rights.
    pub access: Option<AccessFlags>,
}

/// A checked piece of local memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) place: Place,
    pub(crate) length: u32,
}

impl<M: Memory> Regions<M> {
    pub(crate) fn new(limit: u32, max_mr_size: u64) -> Regions<M> {
        let keys = Table::new(ObjectKind::Mr, limit, "max_mr");
        Regions { keys, max_mr_size, desk: Desk::default() }
    }

    pub(crate) fn len(&self) -> u32 {
        self.keys.len()
    }

    /// Registers all of a memory, or `part` of it: the offset of its first byte, and its length.
    pub(crate) fn reg_mr(
        &mut self,
        rng: &mut Rng,
        pd: u32,
        (memory, part): (M, Option<(u64, u64)>),
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError> {
        let size = memory.size();
        let (first, length) = part.unwrap_or((0, size));
        if first.checked_add(length).is_none_or(|end| end > size) {
            let what = "the part does not lie in the memory";
            return Err(VerbsError::InvalidArgument { what });
        }
        let base = match iova {
            Some(address) => address,
            None if access.contains(AccessFlags::ZERO_BASED) => 0,
            // It lies in an address space as a whole.
            None => memory.base_addr().wrapping_add(first),
        };
        check_region(access, base, length, self.max_mr_size)?;
        let tag = rng.next_u32() as u8;
        let (windows, errands) = (0, 0);
        let region = Region { pd, tag, memory, first, base, length, access, windows, errands };
        let id = self.keys.insert(rng, |_| Key::Region(region))?;
        let key = id << 8 | u32::from(tag);
        Ok(MrInfo { mr: Mr(id), lkey: key, rkey: key, addr: base, length })
    }

    /// Removes a region; returns its PD.
    pub(crate) fn dereg_mr(&mut self, mr: Mr) -> Result<u32, VerbsError> {
        let (pd, users) = match self.keys.get(mr.0) {
            Some(Key::Region(region)) => (region.pd, region.windows + region.errands),
            _ => {
                return Err(VerbsError::InvalidHandle { kind: ObjectKind::Mr, handle: mr.0 });
            }
        };
        if users > 0 {
            return Err(VerbsError::InUse { kind: ObjectKind::Mr, handle: mr.0, users });
        }
        self.keys.remove(mr.0);
        Ok(pd)
    }

    /// Changes a region that no window is bound to and that nothing is copied to or from just now
    /// (`ibv_rereg_mr`); its keys stay. Returns its PD before.
    pub(crate) fn rereg_mr(&mut self, mr: Mr, change: MrChange<M>) -> Result<u32, VerbsError> {
        let Some(Key::Region(region)) = self.keys.get_mut(mr.0) else {
            return Err(VerbsError::InvalidHandle { kind: ObjectKind::Mr, handle: mr.0 });
        };
        let users = region.windows + region.errands;
        if users > 0 {
            return Err(VerbsError::InUse { kind: ObjectKind::Mr, handle: mr.0, users });
        }
        let access = change.access.unwrap_or(region.access);
        let (base, length) = match &change.memory {
            Some((memory, iova)) => (*iova, memory.size()),
            None => (region.base, region.length),
        };
        check_region(access, base, length, self.max_mr_size)?;
        let before = region.pd;
        (region.access, region.base, region.length) = (access, base, length);
        region.pd = change.pd.map_or(region.pd, |pd| pd.0);
        if let Some((memory, _)) = change.memory {
            (region.memory, region.first) = (memory, 0);
        }
        Ok(before)
    }

    pub(crate) fn alloc_mw(
        &mut self,
        rng: &mut Rng,
        pd: u32,
        any_qp: bool,
    ) -> Result<MwInfo, VerbsError> {
        let tag = rng.next_u32() as u8;
        let window = Window { pd, tag, any_qp, bound: None };
        let id = self.keys.insert(rng, |_| Key::Window(window))?;
        Ok(MwInfo { mw: Mw(id), rkey: id << 8 | u32::from(tag) })
    }

    /// Removes a window; returns its PD.
    pub(crate) fn dealloc_mw(&mut self, mw: Mw) -> Result<u32, VerbsError> {
        let Some(Key::Window(window)) = self.keys.get(mw.0) else {
            return Err(VerbsError::InvalidHandle { kind: ObjectKind::Mw, handle: mw.0 });
        };
        let (pd, users) = (window.pd, self.errands_behind(mw.0));
        if users > 0 {
            return Err(VerbsError::InUse { kind: ObjectKind::Mw, handle: mw.0, users });
        }
        self.unbind(mw.0);
        self.keys.remove(mw.0);
        Ok(pd)
    }

    /// Binds a window (IBTA vol. 1, 10.6.7.2): one of type 2 for the QP `qpn`, and it must be unbound;
    /// one of type 1 for all QPs of the PD, in the place of what it was bound to, and to no bytes at
    /// all to unbind it.
    pub(crate) fn bind(&mut self, pd: MaybePd, qpn: u32, bind: &BindMw) -> Result<(), WcStatus> {
        const REMOTE: AccessFlags = AccessFlags::REMOTE_CHANGES.union(AccessFlags::REMOTE_READ);
        let Some(Key::Window(window)) = self.keys.get(bind.mw.0) else {
            return Err(WcStatus::MwBindErr);
        };
        let any_qp = window.any_qp;
        let taken = window.bound.is_some() && !any_qp;
        if !pd.is(window.pd) || taken || bind.rkey >> 8 != bind.mw.0 {
            return Err(WcStatus::MwBindErr);
        }
        if any_qp && bind.length == 0 {
            self.unbind(bind.mw.0);
            let Some(Key::Window(window)) = self.keys.get_mut(bind.mw.0) else {
                return Err(gone_while_bound());
            };
            window.tag = bind.rkey as u8;
            return Ok(());
        }
        if !REMOTE.contains(bind.access) {
            return Err(WcStatus::MwBindErr);
        }
        let Some(Key::Region(region)) = self.keys.get_mut(bind.mr.0) else {
            return Err(WcStatus::MwBindErr);
        };
        let inside = bind
            .addr
            .checked_sub(region.base)
            .and_then(|offset| offset.checked_add(bind.length))
            .is_some_and(|end| end <= region.length);
        let writes = bind.access.intersects(AccessFlags::REMOTE_CHANGES);
        let permitted = region.access.contains(AccessFlags::MW_BIND)
            && (!writes || region.access.contains(AccessFlags::LOCAL_WRITE));
        if !pd.is(region.pd) || !inside || !permitted {
            return Err(WcStatus::MwBindErr);
        }
        region.windows += 1;
        self.unbind(bind.mw.0);
        let Some(Key::Window(window)) = self.keys.get_mut(bind.mw.0) else {
            return Err(gone_while_bound());
        };
        window.tag = bind.rkey as u8;
        window.bound = Some(Bound {
            region: bind.mr.0,
            qpn: (!any_qp).then_some(qpn),
            base: bind.addr,
            length: bind.length,
            access: bind.access,
        });
        Ok(())
    }

    /// Invalidates the rkey of a bound window of type 2, at its owner's wish or at a peer's.
    pub(crate) fn invalidate(&mut self, pd: MaybePd, qpn: u32, rkey: u32) -> Result<(), Refused> {
        let Some(Key::Window(window)) = self.keys.get(rkey >> 8) else {
            return Err(Refused::Access);
        };
        let bound = window.bound.ok_or(Refused::Access)?;
        if !pd.is(window.pd) || window.tag != rkey as u8 || bound.qpn != Some(qpn) {
            return Err(Refused::Access);
        }
        self.unbind(rkey >> 8);
        Ok(())
    }

    /// Copies under way elsewhere of the region that a window is bound to, which may have come through
    /// it.
    pub(crate) fn errands_behind(&self, window: u32) -> u32 {
        let Some(Key::Window(Window { bound: Some(bound), .. })) = self.keys.get(window) else {
            return 0;
        };
        match self.keys.get(bound.region) {
            Some(Key::Region(region)) => region.errands,
            _ => {
                bug!("a window is bound to a region that is gone");
                0
            }
        }
    }

    fn unbind(&mut self, window: u32) {
        let Some(Key::Window(entry)) = self.keys.get_mut(window) else {
            return bug!("a window that is gone is unbound");
        };
        let Some(bound) = entry.bound.take() else {
            return;
        };
        match self.keys.get_mut(bound.region) {
            Some(Key::Region(region)) => count_off!(region.windows, 1),
            _ => bug!("a window was bound to a region that is gone"),
        }
    }

    /// A piece of a region, from so many bytes behind its first on.
    pub(crate) fn piece(&self, mr: Mr, offset: u64, length: u64) -> Result<Place, Refused> {
        let Some(Key::Region(region)) = self.keys.get(mr.0) else { return Err(Refused::Access) };
        match offset.checked_add(length) {
            Some(end) if end <= region.length => {
                Ok(Place { region: mr.0, offset: offset + region.first })
            }
            _ => Err(Refused::Access),
        }
    }

    /// Checks a piece of a local SGE.
    #[inline]
    pub(crate) fn local(
        &self,
        pd: MaybePd,
        sge: &Sge,
        skip: u32,
        length: u32,
        writes: bool,
    ) -> Result<Place, Refused> {
        let region_id = sge.lkey >> 8;
        let Some(Key::Region(region)) = self.keys.get(region_id) else {
            return Err(Refused::Access);
        };
        if region.tag != sge.lkey as u8
            || !pd.is(region.pd)
            || (writes && !region.access.contains(AccessFlags::LOCAL_WRITE))
        {
            return Err(Refused::Access);
        }
        let offset = sge.addr.wrapping_sub(region.base).wrapping_add(u64::from(skip));
        let offset = offset.wrapping_add(region.first);
        let first = sge.addr.checked_sub(region.base).ok_or(Refused::Access)?;
        match first.checked_add(u64::from(skip) + u64::from(length)) {
            Some(end) if end <= region.length => Ok(Place { region: region_id, offset }),
            _ => Err(Refused::Access),
        }
    }

    /// Checks a peer's access through QP `qpn`. An access of no bytes needs no key (IBTA vol. 1,
    /// 9.4.1.1): it is granted by `None`.
    #[inline]
    pub(crate) fn remote(
        &self,
        pd: MaybePd,
        qpn: u32,
        rkey: u32,
        va: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<Option<Place>, Refused> {
        if length == 0 {
            return Ok(None);
        }
        let id = rkey >> 8;
        let (reach, first) = match self.keys.get(id) {
            Some(Key::Region(region)) => {
                let rkey = id << 8 | u32::from(region.tag);
                let &Region { pd, base, length, access, first, .. } = region;
                (Reach { rkey, pd, base, length, access }, first)
            }
            Some(Key::Window(window)) => {
                return self.through(window, (pd, qpn), rkey, (va, length), access);
            }
            None => return Err(Refused::Access),
        };
        let opens = || reach.opens(rkey, va, length, access);
        let offset = if pd.is(reach.pd) { opens() } else { None }.ok_or(Refused::Access)?;
        Ok(Some(Place { region: id, offset: offset + first }))
    }

    /// Checks a peer's access through a window.
    #[cold]
    fn through(
        &self,
        window: &Window,
        (pd, qpn): (MaybePd, u32),
        rkey: u32,
        (va, length): (u64, u64),
        access: AccessFlags,
    ) -> Result<Option<Place>, Refused> {
        let bound = window.bound.ok_or(Refused::Access)?;
        if !pd.is(window.pd) || bound.qpn.is_some_and(|only| only != qpn) {
            return Err(Refused::Access);
        }
        let Some(Key::Region(region)) = self.keys.get(bound.region) else {
            bug!("a window is bound to a region that is gone");
            return Err(Refused::Access);
        };
        let reach = Reach {
            rkey: rkey & !0xff | u32::from(window.tag),
            pd: window.pd,
            base: bound.base,
            length: bound.length,
            access: bound.access,
        };
        reach.opens(rkey, va, length, access).ok_or(Refused::Access)?;
        Ok(Some(Place { region: bound.region, offset: va - region.base + region.first }))
    }

    /// A copy of a region has begun elsewhere, or has ended.
    #[cold]
    pub(crate) fn count_errand(&mut self, region: u32, begun: bool) {
        if let Some(Key::Region(region)) = self.keys.get_mut(region) {
            region.errands = if begun { region.errands + 1 } else { region.errands - 1 };
        }
    }

    #[inline]
    pub(crate) fn memory(&self, region: u32) -> Result<&M, Refused> {
        match self.keys.get(region) {
            Some(Key::Region(region)) => Ok(&region.memory),
            _ => Err(Refused::Access),
        }
    }

    #[inline(always)]
    pub(crate) fn read(&self, place: Place, dst: &mut [u8]) -> Result<(), Refused> {
        let memory = self.memory(place.region)?;
        let laid = self.desk.is_laid();
        let read = if laid { Err(MemoryError::Later) } else { memory.read(place.offset, dst) };
        read.or_else(|error| self.read_aside(memory, place, dst, &error))
    }

    #[inline(always)]
    pub(crate) fn write(&self, place: Place, src: &[u8]) -> Result<(), Refused> {
        let memory = self.memory(place.region)?;
        let laid = self.desk.is_laid();
        let written = if laid { Err(MemoryError::Later) } else { memory.write(place.offset, src) };
        written.or_else(|error| self.write_aside(memory, place, src, &error))
    }

    #[cold]
    fn read_aside(
        &self,
        memory: &M,
        place: Place,
        dst: &mut [u8],
        error: &MemoryError,
    ) -> Result<(), Refused> {
        match error {
            MemoryError::Later => self.desk.read(memory, place, dst),
            _ => Err(Refused::Access),
        }
    }

    #[cold]
    fn write_aside(
        &self,
        memory: &M,
        place: Place,
        src: &[u8],
        error: &MemoryError,
    ) -> Result<(), Refused> {
        match error {
            MemoryError::Later => self.desk.write(memory, place, src),
            _ => Err(Refused::Access),
        }
    }

    #[inline(always)]
    pub(crate) fn copy(&self, dst: Place, src: Place, length: u64) -> Result<(), Refused> {
        let from = self.memory(src.region)?;
        let to = self.memory(dst.region)?;
        let aside = self.desk.is_laid() && length <= u64::from(ERRAND_BYTES_MAX);
        let copied = match aside {
            true => Err(MemoryError::Later),
            false => to.copy_from(dst.offset, from, src.offset, length),
        };
        copied.or_else(|error| self.copy_aside(dst, src, length, &error))
    }

    /// As [`Regions::copy`], into a receive. One whose memory is not at hand serves nobody: while it
    /// is waited for another message might get it.
    #[inline]
    pub(crate) fn copy_in(&self, dst: Place, src: Place, length: u64) -> Result<(), Refused> {
        let (from, to) = (self.memory(src.region)?, self.memory(dst.region)?);
        match to.copy_from(dst.offset, from, src.offset, length) {
            Ok(()) => Ok(()),
            Err(MemoryError::Later) => {
                let bytes = self.fetch(src, length)?;
                to.write(dst.offset, &bytes).map_err(|_| Refused::Access)
            }
            Err(error) => self.copy_aside(dst, src, length, &error),
        }
    }

    /// Reads what is to be copied, if it is not too long for that.
    #[cold]
    fn fetch(&self, src: Place, length: u64) -> Result<alloc::vec::Vec<u8>, Refused> {
        if length > u64::from(ERRAND_BYTES_MAX) {
            return Err(self.desk.refuse_length());
        }
        let mut bytes = alloc::vec![0; length as usize];
        match self.read(src, &mut bytes) {
            Ok(()) => Ok(bytes),
            Err(Refused::Later) => Err(Refused::Later),
            Err(_) => Err(Refused::Source),
        }
    }

    /// Copies from one region to another when that cannot be done at once: through a buffer, and
    /// what is not at hand by errands. Or it says whose memory was at fault.
    #[cold]
    fn copy_aside(
        &self,
        dst: Place,
        src: Place,
        length: u64,
        error: &MemoryError,
    ) -> Result<(), Refused> {
        if *error != MemoryError::Later {
            return match self.look_at(src, length) {
                Ok(()) => Err(Refused::Access),
                // Whether it can be read an errand finds out.
                Err(Refused::Later) => self.fetch(src, length).and(Err(Refused::Access)),
                Err(_) => Err(Refused::Source),
            };
        }
        self.write(dst, &self.fetch(src, length)?)
    }

    /// Reads bytes, to know whether that can be: when a copy failed, whose memory was at fault.
    pub(crate) fn look_at(&self, mut at: Place, mut length: u64) -> Result<(), Refused> {
        let mut bytes = [0; 256];
        while length > 0 {
            let len = length.min(bytes.len() as u64);
            self.read(at, &mut bytes[..len as usize])?;
            at.offset += len;
            length -= len;
        }
        Ok(())
    }

    pub(crate) fn compare_swap(&self, at: Place, compare: u64, swap: u64) -> Result<u64, Refused> {
        self.memory(at.region)?.compare_swap(at.offset, compare, swap).map_err(|_| Refused::Access)
    }

    pub(crate) fn fetch_add(&self, at: Place, add: u64) -> Result<u64, Refused> {
        self.memory(at.region)?.fetch_add(at.offset, add).map_err(|_| Refused::Access)
    }

    /// Copies `dst.len()` bytes that begin `skip` bytes into the message of `sges`.
    #[inline(always)]
    pub(crate) fn gather(
        &self,
        pd: MaybePd,
        sges: &[Sge],
        skip: u32,
        mut dst: &mut [u8],
    ) -> Result<(), Refused> {
        let mut pieces = Pieces { sges, skip, left: dst.len() as u32 };
        while let Some((sge, skip, length)) = pieces.take() {
            let place = self.local(pd, sge, skip, length, false)?;
            let (piece, rest) = dst.split_at_mut(length as usize);
            self.read(place, piece)?;
            dst = rest;
        }
        if dst.is_empty() { Ok(()) } else { Err(Refused::Access) }
    }

    /// Copies `src` to where the message of `sges` stands, `skip` bytes into it.
    #[inline]
    pub(crate) fn scatter(
        &self,
        pd: MaybePd,
        sges: &[Sge],
        skip: u32,
        mut src: &[u8],
    ) -> Result<(), Refused> {
        let mut pieces = Pieces { sges, skip, left: src.len() as u32 };
        while let Some((sge, skip, length)) = pieces.take() {
            let place = self.local(pd, sge, skip, length, true)?;
            let (piece, rest) = src.split_at(length as usize);
            self.write(place, piece)?;
            src = rest;
        }
        if src.is_empty() { Ok(()) } else { Err(Refused::Access) }
    }

    /// Checks the SGEs of `length` bytes that begin `skip` bytes into a message, and appends their
    /// places to `segments`.
    pub(crate) fn resolve(
        &self,
        pd: MaybePd,
        sges: &[Sge],
        skip: u32,
        length: u32,
        writes: bool,
        segments: &mut alloc::vec::Vec<Segment>,
    ) -> Result<(), Refused> {
        self.walk(pd, sges, skip, length, writes, |_, place, length| {
            segments.push(Segment { place, length });
            Ok(())
        })
    }

    /// Calls `visit` for each checked piece of `length` bytes that begin `skip` bytes into the
    /// message. A message shorter than that is refused.
    #[inline(always)]
    pub(crate) fn walk<E: From<Refused>>(
        &self,
        pd: MaybePd,
        sges: &[Sge],
        skip: u32,
        length: u32,
        writes: bool,
        mut visit: impl FnMut(&Self, Place, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut pieces = Pieces { sges, skip, left: length };
        while let Some((sge, skip, length)) = pieces.take() {
            let place = self.local(pd, sge, skip, length, writes)?;
            visit(self, place, length)?;
        }
        if pieces.left == 0 { Ok(()) } else { Err(Refused::Access.into()) }
    }
}

/// `left` bytes of a message that begin `skip` bytes into what its SGEs name.
struct Pieces<'a> {
    sges: &'a [Sge],
    skip: u32,
    left: u32,
}

impl<'a> Pieces<'a> {
    /// The next piece: so many bytes of an SGE, from so many on.
    #[inline(always)]
    fn take(&mut self) -> Option<(&'a Sge, u32, u32)> {
        while self.left > 0 {
            let (sge, rest) = self.sges.split_first()?;
            self.sges = rest;
            if self.skip < sge.length {
                let skip = core::mem::take(&mut self.skip);
                let length = self.left.min(sge.length - skip);
                self.left -= length;
                return Some((sge, skip, length));
            }
            self.skip -= sge.length;
        }
        None
    }
}
fn gone_while_bound() -> WcStatus {
    bug!("a window went while it was bound");
    WcStatus::MwBindErr
}
