//! Address handles.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr};

use elver_verbs::{AddressVector, Ah as Handle, Device as _, Gid as Address, Pd as PdHandle};

use crate::engine::{Engine, State};
use crate::errno::{code, minus_one, object, of_verbs};
use crate::gid_index;
use crate::layout::{Ah, AhAttr, Context, Gid, GlobalRoute, Grh, Pd, Wc};
use crate::link_layer;
use crate::owned::given;
use crate::parents::Made;
use crate::told::Told;

/// Bits of a flow label.
const FLOW_LABEL: u32 = 0xf_ffff;
const HOP_LIMIT: u8 = 64;
/// What the port says of its LID: Ethernet has none.
const LID: u16 = 0;

/// What an address vector of the program's says to the device at this address; on Ethernet it must have a GID. A flow label
/// is cut to its bits, as the kernel does: UCX asks for 0xffffffff.
pub(crate) fn vector(attr: &AhAttr, own: IpAddr) -> Result<AddressVector, c_int> {
    if attr.port_num != 1 {
        return Err(libc::EINVAL);
    }
    if attr.is_global == 0 {
        let dest = link_layer::to(own, attr.dlid).ok_or(libc::EINVAL)?;
        return Ok(local(dest));
    }
    let route = &attr.grh;
    Ok(AddressVector {
        dgid: Address(route.dgid.0),
        sgid_index: gid_index::of_device(route.sgid_index)?,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        flow_label: route.flow_label & FLOW_LABEL,
    })
}

/// The way to an address without what a GRH says besides.
fn local(dest: IpAddr) -> AddressVector {
    let dgid = Address::from(dest);
    AddressVector { dgid, hop_limit: HOP_LIMIT, ..AddressVector::default() }
}

/// The way to the port itself, which an address vector without a GRH leads to that has the port's own LID. No LID leads
/// anywhere on Ethernet, and the kernel refuses all of these; but datagram rsockets make one for what they send to
/// themselves, and have no other way. So it is for programs alone that have rdma_cm's datagrams.
fn own(attr: &AhAttr, state: &State) -> Option<AddressVector> {
    let is_own = attr.is_global == 0 && attr.port_num == 1 && attr.dlid == LID;
    let has_datagrams = state.cm.as_ref().is_some_and(|cm| cm.has_datagrams());
    (is_own && has_datagrams).then(|| local(state.device.address()))
}

/// The same, back.
pub(crate) fn attr(vector: &AddressVector) -> AhAttr {
    let grh = GlobalRoute {
        dgid: Gid(vector.dgid.0),
        flow_label: vector.flow_label,
        sgid_index: gid_index::own(),
        hop_limit: vector.hop_limit,
        traffic_class: vector.traffic_class,
    };
    let dlid = link_layer::lid_of(&vector.dgid);
    AhAttr { grh, dlid, sl: 0, src_path_bits: 0, static_rate: 0, is_global: 1, port_num: 1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut Pd, attr: *mut AhAttr) -> *mut Ah {
    object(|| {
        // SAFETY: the verbs contract.
        let (context, domain, attr) =
            unsafe { (given(pd)?.context, PdHandle((*pd).handle), &*given(attr)?) };
        let engine = Engine::of(pd)?;
        let state = engine.lock();
        let vector = match own(attr, &state) {
            Some(own) => own,
            None => vector(attr, state.device.address())?,
        };
        drop(state);
        let dest = vector.dgid.to_ip();
        if let Some(hub) = engine.hub.as_ref().filter(|_| !dest.is_multicast()) {
            // Whether it is reached otherwise than by the link, the lanes know.
            hub.peer(dest);
        }
        let mut state = engine.lock();
        let made = match dest.is_multicast() {
            true => state.device.create_multicast_ah(domain, vector),
            false => state.device.create_ah(domain, vector),
        };
        let handle = made.map_err(of_verbs)?;
        let ah = Box::into_raw(Box::new(Ah { context, pd, handle: handle.0 }));
        state.ahs.insert(handle, Told { context, element: ah.cast() });
        state.parents.made(Made::Ah(handle), pd);
        Ok(ah)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut Ah) -> c_int {
    code(|| {
        // SAFETY: the verbs contract.
        let handle = Handle(unsafe { given(ah)? }.handle);
        let mut state = Engine::of(ah)?.lock();
        state.device.destroy_ah(handle).map_err(of_verbs)?;
        state.ahs.remove(&handle);
        state.parents.ended(Made::Ah(handle));
        // SAFETY: it is ours.
        drop(unsafe { Box::from_raw(ah) });
        Ok(())
    })
}

/// The way back to who sent a datagram, by the 40 bytes before it: a GRH, or an IPv4 header in their last 20.
fn back(grh: &Grh) -> AddressVector {
    let first = u32::from_be(grh.version_tclass_flow);
    let vector = AddressVector { hop_limit: HOP_LIMIT, ..Default::default() };
    if first >> 28 == 6 {
        let (traffic_class, flow_label) = ((first >> 20) as u8, first & 0xf_ffff);
        return AddressVector { dgid: Address(grh.sgid.0), traffic_class, flow_label, ..vector };
    }
    // The IPv4 header lies over the GRH's last 20 bytes: its type of service at byte 21, in `sgid`, and its
    // source address at byte 32, in `dgid`.
    let [.., a, b, c, d, _, _, _, _] = grh.dgid.0;
    let dgid = Address::from(Ipv4Addr::new(a, b, c, d));
    AddressVector { dgid, traffic_class: grh.sgid.0[13], ..vector }
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
        // SAFETY: the verbs contract.
        unsafe { *to = attr(&back(&grh)) };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn grh(bytes: [u8; 40]) -> Grh {
        // SAFETY: numbers of any value, and as many bytes.
        unsafe { bytes.as_ptr().cast::<Grh>().read_unaligned() }
    }

    #[test]
    fn an_answer_goes_back_as_the_datagram_came() {
        let mut bytes = [0; 40];
        bytes[..4].copy_from_slice(&0x6ab1_2345_u32.to_be_bytes());
        bytes[8..24].copy_from_slice(&[0x20; 16]);
        let six = back(&grh(bytes));
        assert_eq!(
            (six.dgid, six.traffic_class, six.flow_label),
            (Address([0x20; 16]), 0xab, 0x1_2345)
        );
        let mut bytes = [0; 40];
        (bytes[20], bytes[21]) = (0x45, 0x68);
        bytes[32..36].copy_from_slice(&[192, 0, 2, 7]);
        let four = back(&grh(bytes));
        let sender = Address::from(Ipv4Addr::new(192, 0, 2, 7));
        assert_eq!((four.dgid, four.traffic_class, four.flow_label), (sender, 0x68, 0));
    }
}
