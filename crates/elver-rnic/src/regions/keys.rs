//! What the keys of a device open: regions and windows, and the protection checks of IBTA vol. 1, 10.6 and 9.4.1.

use elver_random::Rng;
use elver_verbs::{AccessFlags, Memory, Mr, MrInfo, ObjectKind, Pd, Sge, VerbsError, check_region};

use crate::maybe_pd::MaybePd;
use crate::place::{Place, Refused};
use crate::reach::Reach;
use crate::table::Table;

/// Every region and window of a device, under one space of keys: the upper 24 bits of an lkey or
/// rkey are the object's id, the low 8 bits a tag.
#[derive(Debug)]
pub(crate) struct Keys<M> {
    pub(super) table: Table<Key<M>>,
    max_mr_size: u64,
}

#[derive(Debug)]
pub(super) enum Key<M> {
    Region(Region<M>),
    Window(Window),
}

#[derive(Debug)]
pub(super) struct Region<M> {
    pub(super) pd: u32,
    pub(super) tag: u8,
    pub(super) memory: M,
    /// Offset in the memory of its first byte.
    pub(super) first: u64,
    pub(super) base: u64,
    pub(super) length: u64,
    pub(super) access: AccessFlags,
    pub(super) windows: u32,
    /// Copies of it that are under way elsewhere.
    pub(super) errands: u32,
}

#[derive(Debug)]
pub(super) struct Window {
    pub(super) pd: u32,
    pub(super) tag: u8,
    /// Type 1: any QP of its PD may bind it, and again while it is bound.
    pub(super) any_qp: bool,
    pub(super) bound: Option<Bound>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) region: u32,
    /// The one QP that may use it; none where any of the PD may.
    pub(super) qpn: Option<u32>,
    pub(super) base: u64,
    pub(super) length: u64,
    pub(super) access: AccessFlags,
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

impl<M: Memory> Keys<M> {
    pub(crate) fn new(limit: u32, max_mr_size: u64) -> Keys<M> {
        Keys { table: Table::new(ObjectKind::Mr, limit, "max_mr"), max_mr_size }
    }

    pub(crate) fn len(&self) -> u32 {
        self.table.len()
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
        let id = self.table.insert(rng, |_| Key::Region(region))?;
        let key = id << 8 | u32::from(tag);
        Ok(MrInfo { mr: Mr(id), lkey: key, rkey: key, addr: base, length })
    }

    /// Removes a region; returns its PD.
    pub(crate) fn dereg_mr(&mut self, mr: Mr) -> Result<u32, VerbsError> {
        let (pd, users) = match self.table.get(mr.0) {
            Some(Key::Region(region)) => (region.pd, region.windows + region.errands),
            _ => {
                return Err(VerbsError::InvalidHandle { kind: ObjectKind::Mr, handle: mr.0 });
            }
        };
        if users > 0 {
            return Err(VerbsError::InUse { kind: ObjectKind::Mr, handle: mr.0, users });
        }
        self.table.remove(mr.0);
        Ok(pd)
    }

    /// Changes a region that no window is bound to and that nothing is copied to or from just now
    /// (`ibv_rereg_mr`); its keys stay. Returns its PD before.
    pub(crate) fn rereg_mr(&mut self, mr: Mr, change: MrChange<M>) -> Result<u32, VerbsError> {
        let Some(Key::Region(region)) = self.table.get_mut(mr.0) else {
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

    /// A piece of a region, from so many bytes behind its first on.
    pub(crate) fn piece(&self, mr: Mr, offset: u64, length: u64) -> Result<Place, Refused> {
        let Some(Key::Region(region)) = self.table.get(mr.0) else { return Err(Refused::Access) };
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
        let Some(Key::Region(region)) = self.table.get(region_id) else {
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
        let (reach, first) = match self.table.get(id) {
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

    /// A copy of a region has begun elsewhere, or has ended.
    #[cold]
    pub(crate) fn count_errand(&mut self, region: u32, begun: bool) {
        if let Some(Key::Region(region)) = self.table.get_mut(region) {
            region.errands = if begun { region.errands + 1 } else { region.errands - 1 };
        }
    }

    #[inline]
    pub(crate) fn memory(&self, region: u32) -> Result<&M, Refused> {
        match self.table.get(region) {
            Some(Key::Region(region)) => Ok(&region.memory),
            _ => Err(Refused::Access),
        }
    }
}
