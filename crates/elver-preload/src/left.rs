//! What a program has left of a context that it closes. It ends, as a kernel ends what belongs to a file that is closed: peers
//! reach neither its QPs nor memory that the program may give back. Its objects stay where they are, as a program may still
//! hold them; what it calls with them is refused.

use std::collections::HashMap;

use elver_verbs::{Cq, Device as _, Mr, Qp as Handle};

use crate::device_memory::all;
use crate::direct::take_back_region;
use crate::engine::{Engine, State};
use crate::layout::Context;
use crate::parents::Made;
use crate::told::Told;
use crate::{memory, qp, xrc};

/// The QPs of a context, each with the program's object.
fn qps(state: &State, context: *mut Context) -> Vec<(Handle, Told)> {
    let mut all = state.xrc.objects_of(context);
    let own = state.qps.iter().map(|(qp, told)| (*qp, *told));
    all.extend(own.filter(|(qp, _)| state.xrc.objects(*qp).is_empty()));
    all.retain(|(_, told)| told.context == context);
    all
}

/// The objects of a table that are a context's.
fn of<Handle: Copy>(table: &HashMap<Handle, Told>, context: *mut Context) -> Vec<Handle> {
    let its = table.iter().filter(|(_, told)| told.context == context);
    its.map(|(handle, _)| *handle).collect()
}

/// Ends what is left of a context; says whether anything was.
pub(crate) fn end(engine: &Engine, context: *mut Context) -> bool {
    let is_its = |told: &Told| told.context == context;
    let state = engine.lock();
    let qps = qps(&state, context);
    let numbers: Vec<_> = qps
        .iter()
        .filter_map(|(qp, _)| state.device.qp_num(*qp).ok().map(|number| (*qp, number)))
        .collect();
    let regions: Vec<(Mr, u32)> = state
        .mrs
        .iter()
        .filter(|(_, region)| is_its(&region.of))
        .map(|(mr, region)| (*mr, region.rkey))
        .collect();
    let srqs = of(&state.srqs, context);
    let cqs: Vec<Cq> =
        state.cqs.iter().filter(|(_, object)| is_its(&object.told)).map(|(cq, _)| *cq).collect();
    let (windows, ahs) = (of(&state.mws, context), of(&state.ahs, context));
    let pds = of(&state.pds, context);
    let (domains, bare) = (state.xrc.opened_by(context), of(&state.bare, context));
    let had_memory = all().end(context);
    drop(state);
    if qps.is_empty()
        && regions.is_empty()
        && srqs.is_empty()
        && cqs.is_empty()
        && windows.is_empty()
        && ahs.is_empty()
        && pds.is_empty()
        && domains.is_empty()
        && bare.is_empty()
        && !had_memory
    {
        return false;
    }
    // Who is just reaching in finds no way the next time; nobody may wait for him with the device in hand.
    let hub = engine.hub.as_ref();
    for (qp, qp_num) in numbers {
        let _ = engine.close_to_peers(qp, qp_num);
    }
    for (_, rkey) in &regions {
        let _ = take_back_region(hub, *rkey);
    }
    // What something of another context still uses stays in the device, where nobody is told of it.
    let mut state = engine.lock();
    for (handle, told) in qps {
        state.device.detach_all_multicast(handle);
        if qp::end(&mut state, handle, told.element.cast()).is_err() {
            state.xrc.close(handle, told.element.cast());
            state.qps.remove(&handle);
            state.services.remove(&handle);
            state.parents.ended(Made::Qp(handle));
        }
    }
    // Before the regions that they are bound to.
    for mw in windows {
        let _ = state.device.dealloc_mw(mw);
        state.mws.remove(&mw);
        state.parents.ended(Made::Mw(mw));
    }
    for ah in ahs {
        let _ = state.device.destroy_ah(ah);
        state.ahs.remove(&ah);
        state.parents.ended(Made::Ah(ah));
    }
    for (mr, _) in regions {
        if state.device.dereg_mr(mr).is_ok() {
            memory::forget(&mut state, mr);
        }
    }
    for srq in srqs {
        let _ = state.device.destroy_srq(srq);
        state.xrc.remove_srq(srq);
        state.srqs.remove(&srq);
        state.parents.ended(Made::Srq(srq));
    }
    for cq in cqs {
        let _ = state.device.destroy_cq(cq);
        state.timed.remove(&cq);
        state.moderated.forget(cq);
        state.cqs.remove(&cq);
        state.parents.ended(Made::Cq(cq));
    }
    for (element, domain, file) in domains {
        if xrc::close(&mut state, element, domain, file).is_err() {
            state.xrc.closed(element);
        }
    }
    for element in bare {
        state.bare.remove(&element);
    }
    // Last, as all else is in them.
    for pd in pds {
        let _ = state.device.dealloc_pd(pd);
        state.pds.remove(&pd);
    }
    true
}
