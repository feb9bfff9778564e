//! Protection domains, and the memory that is registered in them.

use elver_verbs::{AccessFlags, Memory, Mr, MrInfo, Mw, MwInfo, ObjectKind, Pd, VerbsError};

use super::refuse_if_used;
use crate::Rnic;
use crate::hw::ProtectionDomain;

impl<M: Memory> Rnic<M> {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Limit`] if there are `max_pd` of them.
    pub fn alloc_pd(&mut self) -> Result<Pd, VerbsError> {
        let hw = &mut self.hw;
        hw.pds.insert(&mut hw.rng, |_| ProtectionDomain::default()).map(Pd)
    }

    /// Frees a protection domain that nothing uses.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`] while anything is made in it.
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), VerbsError> {
        let users = self.hw.pds.require(pd.0)?.users;
        refuse_if_used(ObjectKind::Pd, pd.0, users)?;
        self.hw.pds.remove(pd.0);
        Ok(())
    }

    /// Registers memory; see [`elver_verbs::Device::reg_mr`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such domain; [`VerbsError::OutOfRange`] and
    /// [`VerbsError::InvalidArgument`] if memory, address and rights do not go together; [`VerbsError::Limit`]
    /// if there are `max_mr` regions and windows.
    pub fn reg_mr(
        &mut self,
        pd: Pd,
        memory: M,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError> {
        self.register(pd, (memory, None), iova, access)
    }

    /// Registers a part of a memory; see [`elver_verbs::Device::reg_mr_part`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidArgument`] if the part does not lie in the memory; otherwise as [`Self::reg_mr`].
    pub fn reg_mr_part(
        &mut self,
        pd: Pd,
        memory: M,
        (offset, length): (u64, u64),
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError> {
        self.register(pd, (memory, Some((offset, length))), iova, access)
    }

    fn register(
        &mut self,
        pd: Pd,
        memory: (M, Option<(u64, u64)>),
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<MrInfo, VerbsError> {
        let hw = &mut self.hw;
        hw.pds.require(pd.0)?;
        let info = hw.regions.keys.reg_mr(&mut hw.rng, pd.0, memory, iova, access)?;
        hw.use_pd(pd.0)?;
        Ok(info)
    }

    /// Deregisters a region that no window is bound to.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`] while windows are bound to it, or bytes are copied
    /// that were not at hand.
    pub fn dereg_mr(&mut self, mr: Mr) -> Result<(), VerbsError> {
        let pd = self.hw.regions.keys.dereg_mr(mr)?;
        self.hw.release_pd(pd);
        Ok(())
    }

    /// Allocates a type 2 memory window, unbound.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such domain; [`VerbsError::Limit`] if there are `max_mr`
    /// regions and windows.
    pub fn alloc_mw(&mut self, pd: Pd) -> Result<MwInfo, VerbsError> {
        let hw = &mut self.hw;
        hw.pds.require(pd.0)?;
        let info = hw.regions.keys.alloc_mw(&mut hw.rng, pd.0, false)?;
        hw.use_pd(pd.0)?;
        Ok(info)
    }

    /// Frees a memory window, bound or not.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`]; [`VerbsError::InUse`] while bytes are copied through it that were not at
    /// hand.
    pub fn dealloc_mw(&mut self, mw: Mw) -> Result<(), VerbsError> {
        let pd = self.hw.regions.keys.dealloc_mw(mw)?;
        self.hw.release_pd(pd);
        Ok(())
    }

    /// How many regions there are, windows included.
    pub fn mr_count(&self) -> u32 {
        self.hw.regions.keys.len()
    }
}
