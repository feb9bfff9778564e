//! Contexts: made, closed, and made of the file that stands for a device.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Mutex;

use elver_verbs::Device as _;

use crate::device::device;
use crate::engine::Engine;
use crate::errno::{code, object};
use crate::fork::generation;
use crate::layout::{Context, ContextOps, Device, VerbsContext};
use crate::owned::given;
use crate::rung::Rung;
use crate::told::{CLOSED, Owned, Told, owned};
use crate::{caps, cq, cq_ex, dm, left, mw, odp, pd, qp, qp_ex, srq, xrc};

/// A context of the process's device.
fn open(engine: &Engine, device: *mut Device, cmd: OwnedFd) -> Result<*mut Context, c_int> {
    let (fd, events) = Rung::new(libc::O_CLOEXEC).map_err(|error| error.raw_os_error())?;
    let attr = engine.lock().device.query_device();
    // SAFETY: zero is a null pointer, no function, or a number for every field.
    let mut verbs: VerbsContext = unsafe { MaybeUninit::zeroed().assume_init() };
    verbs.sz = size_of::<VerbsContext>();
    verbs.query_port = Some(caps::query_port);
    verbs.query_device_ex = Some(caps::query_device_ex);
    verbs.advise_mr = Some(odp::advise_mr);
    verbs.query_rt_values = Some(caps::query_rt_values);
    verbs.reg_dm_mr = Some(dm::reg_dm_mr);
    verbs.alloc_dm = Some(dm::alloc_dm);
    verbs.free_dm = Some(dm::free_dm);
    verbs.alloc_parent_domain = Some(pd::alloc_parent_domain);
    verbs.alloc_td = Some(pd::alloc_td);
    verbs.dealloc_td = Some(pd::dealloc_td);
    verbs.modify_cq = Some(cq::modify_cq);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.create_qp_ex = Some(qp_ex::create_qp_ex);
    verbs.get_srq_num = Some(srq::get_srq_num);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.open_xrcd = Some(xrc::open_xrcd);
    verbs.close_xrcd[0] = Some(xrc::close_xrcd);
    verbs.open_qp = Some(xrc::open_qp);
    verbs.context.device = device;
    verbs.context.ops = ContextOps {
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        post_srq_recv: Some(srq::post_srq_recv),
        post_send: Some(qp::post_send),
        post_recv: Some(qp::post_recv),
        alloc_mw: Some(mw::alloc_mw),
        bind_mw: Some(mw::bind_mw),
        dealloc_mw: Some(mw::dealloc_mw),
        ..verbs.context.ops
    };
    verbs.context.cmd_fd = cmd.as_raw_fd();
    verbs.context.async_fd = fd.as_raw_fd();
    verbs.context.num_comp_vectors = 1;
    // `__VERBS_ABI_IS_EXTENDED`.
    verbs.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    let owned = Box::into_raw(Box::new(Owned {
        verbs,
        fd,
        cmd,
        events: Mutex::new(events),
        attr,
        generation: generation(),
    }));
    // SAFETY: it was just made.
    let context = unsafe { &raw mut (*owned).verbs.context };
    engine.lock().contexts.push(Told { context, element: ptr::null_mut() });
    Ok(context)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    object(|| {
        if device.is_null() {
            return Err(libc::EINVAL);
        }
        let engine = Engine::open()?;
        let cmd = engine.file.try_clone().map_err(|_| libc::EMFILE)?;
        open(engine, device, cmd)
    })
}

/// A context by the file of another (`cmd_fd`), which it owns from then on. Objects are those of one
/// process: the file of another process's device is refused.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut Context {
    object(|| {
        if cmd_fd < 0 {
            return Err(libc::EBADF);
        }
        let engine = Engine::get()?;
        // SAFETY: the verbs contract: the descriptor is the program's, and becomes ours when all is well.
        let cmd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        let identity =
            |fd: &OwnedFd| rustix::fs::fstat(fd.as_fd()).map(|stat| (stat.st_dev, stat.st_ino));
        match (identity(&cmd), identity(&engine.file)) {
            (Ok(given), Ok(ours)) if given == ours => open(engine, device(), cmd),
            (result, _) => {
                // It stays the program's.
                let _ = std::os::fd::IntoRawFd::into_raw_fd(cmd);
                Err(result.map_or_else(|error| error.raw_os_error(), |_| libc::EINVAL))
            }
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    code(|| {
        // A parent's stays: what is in it may be half done.
        let engine = Engine::of(context)?;
        engine.lock().contexts.retain(|open| open.context != context);
        // SAFETY: the verbs contract: it is ours, and nobody else closes it.
        let owned: *mut Owned = ptr::from_ref(unsafe { owned(given(context)?) }).cast_mut();
        if !left::end(engine, context) {
            // SAFETY: as above, and nothing of it is left.
            drop(unsafe { Box::from_raw(owned) });
            return Ok(());
        }
        // What is left still points to it, and is told by its generation that it is closed.
        // SAFETY: as above; what is dropped here is used no more, as nobody finds the context.
        unsafe {
            (*owned).generation = CLOSED;
            ptr::drop_in_place(&raw mut (*owned).fd);
            ptr::drop_in_place(&raw mut (*owned).events);
            ptr::drop_in_place(&raw mut (*owned).cmd);
        }
        Ok(())
    })
}
