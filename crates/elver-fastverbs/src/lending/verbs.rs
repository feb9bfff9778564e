//! What of libibverbs' structures lending reads and writes (`infiniband/verbs.h`). None of it has changed since
//! `IBVERBS_1.1`.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

/// `IBV_QPT_RC`.
pub(crate) const RC: u32 = 2;
/// `IBV_QPS_RESET`, `IBV_QPS_RTS`, `IBV_QPS_ERR`.
pub(crate) const RESET: u32 = 0;
pub(crate) const RTS: u32 = 3;
pub(crate) const ERR: u32 = 6;
/// `IBV_QP_STATE`, `IBV_QP_CAP`.
pub(crate) const STATE: c_int = 1;
pub(crate) const CAP: c_int = 1 << 19;
/// `IBV_WR_RDMA_WRITE`; `IBV_WR_ATOMIC_CMP_AND_SWP` and `IBV_WR_ATOMIC_FETCH_AND_ADD`; `IBV_WR_BIND_MW`.
const RDMA_WRITE: u32 = 0;
pub(crate) const ATOMICS: [u32; 2] = [5, 6];
pub(crate) const BIND_MW: u32 = 8;
/// `IBV_SEND_SIGNALED`, `IBV_SEND_INLINE`.
const SIGNALED: u32 = 2;
pub(crate) const INLINE: u32 = 8;
/// `IBV_WC_RECV`, a bit.
const RECEIVED: u32 = 1 << 7;
/// Words of `struct ibv_qp_init_attr` before `cap.max_send_sge`, and before `cap.max_inline_data`.
const MAX_SEND_SGE: usize = 10;
const MAX_INLINE_DATA: usize = 12;

/// Words of `struct ibv_context` before what is of interest: the device, and `post_send` and `post_recv` among 32 functions.
const POLL_CQ: usize = 12;
const POST_SEND: usize = 26;
const POST_RECV: usize = 27;
const FUNCTIONS_END: usize = 33;

pub(crate) type PostSend = unsafe extern "C" fn(*mut Qp, *mut c_void, *mut *mut c_void) -> c_int;
pub(crate) type PostRecv = PostSend;
type PollCq = unsafe extern "C" fn(*mut c_void, c_int, *mut Wc) -> c_int;

/// `struct ibv_context`, as words.
#[repr(transparent)]
pub(crate) struct Context(pub(crate) [usize; FUNCTIONS_END]);

/// The start of `struct ibv_qp`.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut c_void,
    pub(crate) send_cq: *mut c_void,
    pub(crate) recv_cq: *mut c_void,
    pub(crate) srq: *mut c_void,
    pub(crate) handle: u32,
    qp_num: u32,
    /// What this process last made of it.
    pub(crate) state: u32,
    pub(crate) qp_type: u32,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    opcode: u32,
    rest: [u32; 8],
}

impl Wc {
    /// Whether a success is a receive's.
    pub(crate) fn is_receive(&self) -> bool {
        self.opcode & RECEIVED != 0
    }
}

/// `struct ibv_qp_attr` and `struct ibv_qp_init_attr`, whose first member of the former is the state.
#[repr(C, align(8))]
pub(crate) struct Attributes(pub(crate) [u32; 64]);

impl Attributes {
    /// Of the former.
    pub(crate) fn state(&self) -> u32 {
        self.0[0]
    }

    /// Of the latter.
    pub(crate) fn limits(&self) -> Limits {
        Limits { sges: self.0[MAX_SEND_SGE], inline_bytes: self.0[MAX_INLINE_DATA] }
    }
}

/// What a queue pair was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) sges: u32,
    pub(crate) inline_bytes: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `struct ibv_send_wr`.
#[repr(C)]
pub(crate) struct SendWr {
    wr_id: u64,
    next: *mut c_void,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) immediate: u32,
    /// Of READs, WRITEs and atomics.
    pub(crate) remote_addr: u64,
    rest: [u64; 10],
}

/// `struct ibv_recv_wr`, without memory.
#[repr(C)]
pub(crate) struct Receive {
    wr_id: u64,
    next: *mut c_void,
    sg_list: *mut c_void,
    num_sge: c_int,
}

impl SendWr {
    /// An unsignalled WRITE from no SGE of a list.
    pub(crate) const fn of(sg_list: *const Sge) -> SendWr {
        SendWr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list,
            num_sge: 0,
            opcode: RDMA_WRITE,
            flags: 0,
            immediate: 0,
            remote_addr: 0,
            rest: [0; 10],
        }
    }

    /// A WRITE of nothing: it reaches the peer behind all that was posted before it, and needs no memory there, but the
    /// peer's leave to WRITE.
    pub(crate) fn fence(wr_id: u64) -> SendWr {
        SendWr { wr_id, flags: SIGNALED, ..SendWr::of(ptr::null()) }
    }
}

impl Receive {
    pub(crate) fn new(wr_id: u64) -> Receive {
        Receive { wr_id, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 }
    }
}

/// The functions of a context's provider that lending stands before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Functions {
    pub(crate) post_send: usize,
    pub(crate) post_recv: usize,
}

/// Those that a context has now.
///
/// # Safety
/// It is an open context of libibverbs.
pub(crate) unsafe fn functions(context: *mut Context) -> Functions {
    // SAFETY: a context has that many words, which its provider wrote when it was opened.
    let words = unsafe { &raw const (*context).0 }.cast::<usize>();
    // SAFETY: likewise.
    unsafe {
        Functions { post_send: words.add(POST_SEND).read(), post_recv: words.add(POST_RECV).read() }
    }
}

/// Replaces them.
///
/// # Safety
/// As [`functions`]; the new ones have the types of the old.
pub(crate) unsafe fn set_functions(context: *mut Context, functions: Functions) {
    // SAFETY: words that are aligned; a thread that posts meanwhile reads the old function or the new one, as an aligned
    // word is written at once.
    unsafe {
        let words = (&raw mut (*context).0).cast::<usize>();
        words.add(POST_SEND).write_volatile(functions.post_send);
        words.add(POST_RECV).write_volatile(functions.post_recv);
    }
}

/// The descriptor by which a context gives the kernel commands.
///
/// # Safety
/// As [`functions`].
pub(crate) unsafe fn command_fd(context: *mut Context) -> c_int {
    // SAFETY: it stands behind the functions.
    unsafe { context.cast::<usize>().add(FUNCTIONS_END).cast::<c_int>().read() }
}

/// Takes completions.
///
/// # Safety
/// A completion queue of that context.
pub(crate) unsafe fn poll(context: *mut Context, cq: *mut c_void, to: &mut [Wc]) -> c_int {
    // SAFETY: a context has that many words, and this one is its provider's function of this type.
    unsafe {
        let poll = context.cast::<usize>().add(POLL_CQ).read();
        std::mem::transmute::<usize, PollCq>(poll)(cq, to.len() as c_int, to.as_mut_ptr())
    }
}

/// Whether a function is of this library.
pub(crate) fn is_own(function: *const c_void) -> bool {
    static OWN: u8 = 0;
    let bases = [function, (&raw const OWN).cast()].map(|address| {
        // SAFETY: all zeros are a value of it, which the call writes; it looks for an address, whatever that is.
        unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            (libc::dladdr(address, &raw mut info) != 0).then_some(info.dli_fbase)
        }
    });
    bases[0].is_some() && bases[0] == bases[1]
}

/// The file name of the library that a function is in.
pub(crate) fn library_of(function: usize) -> Option<String> {
    // SAFETY: all zeros are a value of it, and the call writes it.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the call looks for an address, whatever that is.
    let found = unsafe { libc::dladdr(function as *const c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own name of a library, which is loaded.
    let path = unsafe { CStr::from_ptr(info.dli_fname) }.to_str().ok()?;
    Some(path.rsplit('/').next().unwrap_or(path).to_owned())
}

/// Has the kernel look at a queue pair's send queue, as providers of software devices do when they have posted.
///
/// # Errors
/// What errno says.
pub(crate) fn doorbell(command_fd: c_int, handle: u32) -> Result<(), i32> {
    /// `struct ib_uverbs_cmd_hdr` and `struct ib_uverbs_post_send` of `rdma/ib_user_verbs.h`, with no WR.
    #[repr(C)]
    struct Command {
        command: u32,
        in_words: u16,
        out_words: u16,
        response: u64,
        qp_handle: u32,
        wr_count: u32,
        sge_count: u32,
        wqe_size: u32,
    }
    const POST_SEND_COMMAND: u32 = 28;
    /// Bytes of the kernel's own WR, at least.
    const WQE_SIZE: u32 = 128;
    let mut response = 0_u32;
    let command = Command {
        command: POST_SEND_COMMAND,
        in_words: (size_of::<Command>() / 4) as u16,
        out_words: 1,
        response: (&raw mut response) as u64,
        qp_handle: handle,
        wr_count: 0,
        sge_count: 0,
        wqe_size: WQE_SIZE,
    };
    let size = size_of::<Command>();
    // SAFETY: the command is that long, and the response has the room that it says.
    let written = unsafe { libc::write(command_fd, (&raw const command).cast(), size) };
    match written == size as isize {
        true => Ok(()),
        false => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
    }
}
