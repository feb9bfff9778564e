//! Protection domains, parent domains, and thread domains.
//!
//! A parent domain is a protection domain under another name, with allocators for what a driver shares
//! with its hardware. There is no such memory here, so that they are never called.

use std::ffi::c_int;

use elver_verbs::{Device as _, Pd as Handle};

use crate::engine::Engine;
use crate::errno::{code, object, of_verbs};
use crate::layout::{Context, ParentDomainInitAttr, Pd, Td, TdInitAttr};
use crate::owned::given;
use crate::told::Told;

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS` and `_PD_CONTEXT`.
const ALLOCATORS: u32 = 1;
const PD_CONTEXT: u32 = 2;

/// A protection domain, and what a program does not see of it.
#[repr(C)]
struct OwnedPd {
    pd: Pd,
    /// Parent domains that were made of it. It changes under the engine's lock alone.
    children: u32,
    /// Of a parent domain: what it was made of.
    of: Option<(*mut OwnedPd, *mut OwnedTd)>,
}

/// A thread domain: a promise of the program's that one thread uses what is made in it.
#[repr(C)]
struct OwnedTd {
    td: Td,
    /// As of an [`OwnedPd`].
    children: u32,
}

fn boxed(context: *mut Context, handle: u32, of: Option<(*mut OwnedPd, *mut OwnedTd)>) -> *mut Pd {
    let owned = OwnedPd { pd: Pd { context, handle }, children: 0, of };
    Box::into_raw(Box::new(owned)).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    object(|| {
        let mut state = Engine::of(context)?.lock();
        let handle = state.device.alloc_pd().map_err(of_verbs)?;
        let pd = boxed(context, handle.0, None);
        state.pds.insert(handle, Told { context, element: pd.cast() });
        Ok(pd)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    code(|| {
        let mut state = Engine::of(pd)?.lock();
        let pd = pd.cast::<OwnedPd>();
        // SAFETY: the verbs contract.
        let owned = unsafe { given(pd)? };
        if owned.children > 0 {
            return Err(libc::EBUSY);
        }
        match owned.of {
            Some(_) if !state.parents.remove(pd.cast()) => return Err(libc::EBUSY),
            // SAFETY: what it was made of cannot go before it does.
            Some((of, td)) => unsafe {
                (*of).children -= 1;
                if let Some(td) = td.as_mut() {
                    td.children -= 1;
                }
            },
            None => {
                let handle = Handle(owned.pd.handle);
                state.device.dealloc_pd(handle).map_err(of_verbs)?;
                state.pds.remove(&handle);
            }
        }
        state.bare.remove(&pd.addr());
        // SAFETY: it is ours, and nothing uses it.
        drop(unsafe { Box::from_raw(pd) });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut Context,
    attr: *mut ParentDomainInitAttr,
) -> *mut Pd {
    object(|| {
        let mut state = Engine::of(context)?.lock();
        // SAFETY: the verbs contract.
        let attr = unsafe { given(attr)? };
        if attr.comp_mask & !(ALLOCATORS | PD_CONTEXT) != 0 {
            return Err(libc::EINVAL);
        }
        let allocators = attr.alloc != 0 && attr.free != 0;
        if attr.comp_mask & ALLOCATORS != 0 && !allocators {
            return Err(libc::EINVAL);
        }
        let (of, td) = (attr.pd.cast::<OwnedPd>(), attr.td.cast::<OwnedTd>());
        // SAFETY: the verbs contract.
        let (domain, thread) = unsafe { (given(of)?, td.as_mut()) };
        // Parents have no parents.
        if domain.of.is_some() {
            return Err(libc::EINVAL);
        }
        domain.children += 1;
        if let Some(thread) = thread {
            thread.children += 1;
        }
        let parent = boxed(context, domain.pd.handle, Some((of, td)));
        state.parents.add(parent);
        state.bare.insert(parent.addr(), Told { context, element: parent.cast() });
        Ok(parent)
    })
}

pub(crate) unsafe extern "C" fn alloc_td(context: *mut Context, init: *mut TdInitAttr) -> *mut Td {
    object(|| {
        let engine = Engine::of(context)?;
        // SAFETY: the verbs contract.
        if unsafe { given(init)? }.comp_mask != 0 {
            return Err(libc::EINVAL);
        }
        let owned = Box::into_raw(Box::new(OwnedTd { td: Td { context }, children: 0 }));
        engine.lock().bare.insert(owned.addr(), Told { context, element: owned.cast() });
        Ok(owned.cast())
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut Td) -> c_int {
    code(|| {
        let mut state = Engine::of(td)?.lock();
        let td = td.cast::<OwnedTd>();
        // SAFETY: the verbs contract.
        if unsafe { given(td)? }.children > 0 {
            return Err(libc::EBUSY);
        }
        state.bare.remove(&td.addr());
        // SAFETY: it is ours, and nothing uses it.
        drop(unsafe { Box::from_raw(td) });
        Ok(())
    })
}

/// A domain of this device by its number, for another context of this process.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_pd(context: *mut Context, handle: u32) -> *mut Pd {
    object(|| {
        let mut state = Engine::of(context)?.lock();
        if !state.pds.contains_key(&Handle(handle)) {
            return Err(libc::ENOENT);
        }
        let pd = boxed(context, handle, None);
        state.bare.insert(pd.addr(), Told { context, element: pd.cast() });
        Ok(pd)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_pd(pd: *mut Pd) {
    if !pd.is_null() {
        let _ = Engine::of(pd).map(|engine| engine.lock().bare.remove(&pd.addr()));
        // SAFETY: the verbs contract: it came from `ibv_import_pd`; the domain itself stays.
        drop(unsafe { Box::from_raw(pd.cast::<OwnedPd>()) });
    }
}
