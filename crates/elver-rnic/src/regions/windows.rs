//! Memory windows: what they are bound to, and what they open (IBTA vol. 1, 10.6.7).

use elver_random::Rng;
use elver_verbs::{AccessFlags, BindMw, Memory, Mw, MwInfo, ObjectKind, VerbsError, WcStatus};

use super::keys::{Bound, Key, Keys, Window};
use crate::maybe_pd::MaybePd;
use crate::place::{Place, Refused};
use crate::reach::Reach;

impl<M: Memory> Keys<M> {
    pub(crate) fn alloc_mw(
        &mut self,
        rng: &mut Rng,
        pd: u32,
        any_qp: bool,
    ) -> Result<MwInfo, VerbsError> {
        let tag = rng.next_u32() as u8;
        let window = Window { pd, tag, any_qp, bound: None };
        let id = self.table.insert(rng, |_| Key::Window(window))?;
        Ok(MwInfo { mw: Mw(id), rkey: id << 8 | u32::from(tag) })
    }

    /// Removes a window; returns its PD.
    pub(crate) fn dealloc_mw(&mut self, mw: Mw) -> Result<u32, VerbsError> {
        let Some(Key::Window(window)) = self.table.get(mw.0) else {
            return Err(VerbsError::InvalidHandle { kind: ObjectKind::Mw, handle: mw.0 });
        };
        let (pd, users) = (window.pd, self.errands_behind(mw.0));
        if users > 0 {
            return Err(VerbsError::InUse { kind: ObjectKind::Mw, handle: mw.0, users });
        }
        self.unbind(mw.0);
        self.table.remove(mw.0);
        Ok(pd)
    }

    /// Binds a window (IBTA vol. 1, 10.6.7.2): one of type 2 for the QP `qpn`, and it must be unbound;
    /// one of type 1 for all QPs of the PD, in the place of what it was bound to, and to no bytes at
    /// all to unbind it.
    pub(crate) fn bind(&mut self, pd: MaybePd, qpn: u32, bind: &BindMw) -> Result<(), WcStatus> {
        const REMOTE: AccessFlags = AccessFlags::REMOTE_CHANGES.union(AccessFlags::REMOTE_READ);
        let Some(Key::Window(window)) = self.table.get(bind.mw.0) else {
            return Err(WcStatus::MwBindErr);
        };
        let any_qp = window.any_qp;
        let taken = window.bound.is_some() && !any_qp;
        if !pd.is(window.pd) || taken || bind.rkey >> 8 != bind.mw.0 {
            return Err(WcStatus::MwBindErr);
        }
        if any_qp && bind.length == 0 {
            self.unbind(bind.mw.0);
            let Some(Key::Window(window)) = self.table.get_mut(bind.mw.0) else {
                return Err(gone_while_bound());
            };
            window.tag = bind.rkey as u8;
            return Ok(());
        }
        if !REMOTE.contains(bind.access) {
            return Err(WcStatus::MwBindErr);
        }
        let Some(Key::Region(region)) = self.table.get_mut(bind.mr.0) else {
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
        let Some(Key::Window(window)) = self.table.get_mut(bind.mw.0) else {
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
        let Some(Key::Window(window)) = self.table.get(rkey >> 8) else {
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
        let Some(Key::Window(Window { bound: Some(bound), .. })) = self.table.get(window) else {
            return 0;
        };
        match self.table.get(bound.region) {
            Some(Key::Region(region)) => region.errands,
            _ => {
                bug!("a window is bound to a region that is gone");
                0
            }
        }
    }

    fn unbind(&mut self, window: u32) {
        let Some(Key::Window(entry)) = self.table.get_mut(window) else {
            return bug!("a window that is gone is unbound");
        };
        let Some(bound) = entry.bound.take() else {
            return;
        };
        match self.table.get_mut(bound.region) {
            Some(Key::Region(region)) => count_off!(region.windows, 1),
            _ => bug!("a window was bound to a region that is gone"),
        }
    }

    /// Checks a peer's access through a window.
    #[cold]
    pub(super) fn through(
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
        let Some(Key::Region(region)) = self.table.get(bound.region) else {
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
}

fn gone_while_bound() -> WcStatus {
    bug!("a window went while it was bound");
    WcStatus::MwBindErr
}
