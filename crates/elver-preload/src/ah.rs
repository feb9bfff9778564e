//! Address handles.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;

use elver_verbs::{AddressVector, Ah as Handle, Device as _, Gid as Address, Pd as PdHandle};

use crate::engine::Engine;
use crate::errno::{code, minus_one, object, of_verbs};
use crate::layout::{Ah, AhAttr, Context, Gid, GlobalRoute, Grh, Pd, Wc};
use crate::owned::given;

/// What an address vector of the program's says; on Ethernet it must have a GID.
pub(crate) fn vector(attr: &AhAttr) -> Result<AddressVector, c_int> {
    if attr.is_global == 0 || attr.port_num != 1 {
        return Err(libc::EINVAL);
    }
    let route = &attr.grh;
    Ok(AddressVector {
        dgid: Address(route.dgid.0),
        sgid_index: route.sgid_index,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        flow_label: route.flow_label,
    })
}

/// The same, back.
pub(crate) fn attr(vector: &AddressVector) -> AhAttr {
    let grh = GlobalRoute {
        dgid: Gid(vector.dgid.0),
        flow_label: vector.flow_label,
        sgid_index: vector.sgid_index,
        hop_limit: vector.hop_limit,
        traffic_class: vector.traffic_class,
    };
    AhAttr { grh, dlid: 0, sl: 0, src_path_bits: 0, static_rate: 0, is_global: 1, port_num: 1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut Pd, attr: *mut AhAttr) -> *mut Ah {
    object(|| {
        // SAFETY: the verbs contract.
        let (context, domain, vector) =
            unsafe { (given(pd)?.context, PdHandle((*pd).handle), vector(given(attr)?)?) };
        let engine = Engine::of(pd)?;
        let dest = vector.dgid.to_ip();
        if let Some(hub) = engine.hub.as_ref().filter(|_| !dest.is_multicast()) {
            // Whether it is reached otherwise than by the link, the lanes know.
            hub.peer(dest);
        }
        let device = &mut engine.lock().device;
        let made = match dest.is_multicast() {
            true => device.create_multicast_ah(domain, vector),
            false => device.create_ah(domain, vector),
        };
        let handle = made.map_err(of_verbs)?;
        Ok(Box::into_raw(Box::new(Ah { context, pd, handle: handle.0 })))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut Ah) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let handle = Handle(unsafe { given(ah)? }.handle);
        Engine::of(ah)?.lock().device.destroy_ah(handle).map_err(of_verbs)?;
        // SAFETY: it is ours.
        drop(unsafe { Box::from_raw(ah) });
        Ok(())
    })
}

/// Who sent a datagram, by the 40 bytes before it: a GRH, or an IPv4 header in their last 20.
fn sender(grh: &Grh) -> Gid {
    if u32::from_be(grh.version_tclass_flow) >> 28 == 6 {
        return grh.sgid;
    }
    // The IPv4 header lies over the GRH's last 20 bytes, its source address at byte 32: in `dgid`.
    let [.., a, b, c, d, _, _, _, _] = grh.dgid.0;
    Gid(Address::from(Ipv4Addr::new(a, b, c, d)).0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    _: *mut Context,
    port: u8,
    wc: *mut Wc,
    grh: *mut Grh,
    to: *mut AhAttr,
) -> c_int {
    minus_one(|| {
        // SAFETY: the verbs contract.
        let has_grh = unsafe { (*wc).wc_flags } & 1 != 0;
        if !has_grh || port != 1 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the verbs contract; a receive buffer is not aligned.
        let grh = unsafe { grh.read_unaligned() };
        let vector =
            AddressVector { dgid: Address(sender(&grh).0), hop_limit: 64, ..Default::default() };
        // SAFETY: the verbs contract.
        unsafe { *to = attr(&vector) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut Pd,
    wc: *mut Wc,
    grh: *mut Grh,
    port: u8,
) -> *mut Ah {
    // SAFETY: numbers may be zero.
    let mut attr: AhAttr = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the verbs contract.
    unsafe {
        if ibv_init_ah_from_wc((*pd).context, port, wc, grh, &mut attr) != 0 {
            return std::ptr::null_mut();
        }
        ibv_create_ah(pd, &mut attr)
    }
}
