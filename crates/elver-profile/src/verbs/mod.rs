//! The host's own libibverbs, called as any program calls it: what was preloaded stands before it.
#![allow(unsafe_code)]

mod layout;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use self::layout::{
    AhAttr, Cap, Context, Gid, Mr, PortAttr, Qp, QpAttr, QpInitAttr, SendWr, Sge, Wc,
};

/// Bytes that are registered.
const REGION: usize = 4096;
/// The longest that a READ may take.
const STALL: Duration = Duration::from_secs(60);
/// Local writes, remote writes and reads.
const ACCESS: u32 = 0b111;

/// What brings a device.
const DRIVER: &str = "load an adapter's driver, or rdma_rxe (`modprobe rdma_rxe`, then `rdma link add rxe0 type rxe netdev \
                      NAME`); Elver's own device needs none, and is measured by `elver perf pair` and `elver bench rnic`";

/// What one program of a connection has made so far.
pub(crate) struct Verbs {
    devices: Vec<*mut c_void>,
    context: *mut c_void,
    port: PortAttr,
    gid: (u8, Gid),
    pd: *mut c_void,
    mr: *mut Mr,
    cq: *mut c_void,
    qp: *mut Qp,
    memory: Box<[u64]>,
}

macro_rules! call {
    ($verbs:expr, $name:literal, fn($($type:ty),*) -> $result:ty, $($arg:expr),*) => {{
        type Function = unsafe extern "C" fn($($type),*) -> $result;
        let found = $verbs.symbol($name)?;
        // SAFETY: the function of that name in libibverbs has this type, and gets what its manual page asks for: objects
        // that it made itself and that are not destroyed, structures that outlive the call.
        unsafe { std::mem::transmute::<*mut c_void, Function>(found)($($arg),*) }
    }};
}

impl Verbs {
    /// Loads the library.
    pub(crate) fn load() -> Result<Verbs> {
        // SAFETY: a name that ends with a zero; what libibverbs does when it is loaded is harmless.
        let library = unsafe {
            libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL)
        };
        ensure!(
            !library.is_null(),
            "cannot load libibverbs.so.1; on Debian: apt-get install libibverbs1"
        );
        Ok(Verbs {
            devices: Vec::new(),
            context: null_mut(),
            port: PortAttr::default(),
            gid: (0, Gid::default()),
            pd: null_mut(),
            mr: null_mut(),
            cq: null_mut(),
            qp: null_mut(),
            memory: vec![0; REGION / 8].into(),
        })
    }

    /// A function as a program that is linked with the library would find it.
    fn symbol(&self, name: &CStr) -> Result<*mut c_void> {
        // SAFETY: a name that ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        ensure!(!found.is_null(), "libibverbs has no {}", name.to_string_lossy());
        Ok(found)
    }

    /// The number of devices.
    pub(crate) fn list(&mut self) -> Result<usize> {
        let mut count: c_int = 0;
        let list =
            call!(self, c"ibv_get_device_list", fn(*mut c_int) -> *mut *mut c_void, &raw mut count);
        ensure!(
            !list.is_null(),
            "this kernel has no RDMA devices, which are what this measures (ibv_get_device_list: {}): {DRIVER}",
            io::Error::last_os_error()
        );
        // SAFETY: the list has that many devices, and is never freed, so that they stay.
        self.devices = unsafe { std::slice::from_raw_parts(list, count as usize) }.to_vec();
        Ok(self.devices.len())
    }

    /// Opens the device of this name, or the first.
    pub(crate) fn open(&mut self, name: Option<&str>) -> Result<()> {
        for device in self.devices.clone() {
            let its = call!(self, c"ibv_get_device_name", fn(*mut c_void) -> *const c_char, device);
            // SAFETY: the device's name, which stays as long as it.
            let its = unsafe { CStr::from_ptr(its) }.to_string_lossy().into_owned();
            if name.is_none_or(|name| name == its) {
                let open = call!(self, c"ibv_open_device", fn(*mut c_void) -> *mut c_void, device);
                ensure!(
                    !open.is_null(),
                    "ibv_open_device of {its}: {}",
                    io::Error::last_os_error()
                );
                self.context = open;
                return Ok(());
            }
        }
        match name {
            Some(name) => {
                bail!("there is no RDMA device {name}; `rdma link` lists those there are")
            }
            None => bail!("the kernel has no RDMA device, which is what this measures: {DRIVER}"),
        }
    }

    /// Asks for the port's state and its address.
    pub(crate) fn query(&mut self) -> Result<()> {
        ensure!(!self.context.is_null(), "no device is open");
        let port = &raw mut self.port;
        let done = call!(
            self,
            c"ibv_query_port",
            fn(*mut c_void, u8, *mut PortAttr) -> c_int,
            self.context,
            1,
            port
        );
        ensure!(done == 0, "ibv_query_port: {}", io::Error::last_os_error());
        // RoCE's first is made of the MAC address, and the next is an IP address.
        for index in [1u8, 0] {
            let mut gid = Gid::default();
            let done = call!(
                self,
                c"ibv_query_gid",
                fn(*mut c_void, u8, c_int, *mut Gid) -> c_int,
                self.context,
                1,
                c_int::from(index),
                &raw mut gid
            );
            if done == 0 && gid.0 != [0; 16] {
                self.gid = (index, gid);
                return Ok(());
            }
        }
        bail!("the device's port has no address")
    }

    pub(crate) fn alloc_pd(&mut self) -> Result<()> {
        ensure!(!self.context.is_null(), "no device is open");
        self.pd = call!(self, c"ibv_alloc_pd", fn(*mut c_void) -> *mut c_void, self.context);
        ensure!(!self.pd.is_null(), "ibv_alloc_pd: {}", io::Error::last_os_error());
        Ok(())
    }

    pub(crate) fn reg_mr(&mut self) -> Result<()> {
        ensure!(!self.pd.is_null(), "there is no protection domain");
        let memory = self.memory.as_mut_ptr().cast();
        self.mr = call!(
            self,
            c"ibv_reg_mr",
            fn(*mut c_void, *mut c_void, usize, c_int) -> *mut Mr,
            self.pd,
            memory,
            REGION,
            ACCESS as c_int
        );
        ensure!(!self.mr.is_null(), "ibv_reg_mr: {}", io::Error::last_os_error());
        Ok(())
    }

    pub(crate) fn create_cq(&mut self) -> Result<()> {
        ensure!(!self.context.is_null(), "no device is open");
        self.cq = call!(
            self,
            c"ibv_create_cq",
            fn(*mut c_void, c_int, *mut c_void, *mut c_void, c_int) -> *mut c_void,
            self.context,
            64,
            null_mut(),
            null_mut(),
            0
        );
        ensure!(!self.cq.is_null(), "ibv_create_cq: {}", io::Error::last_os_error());
        Ok(())
    }

    pub(crate) fn create_qp(&mut self) -> Result<()> {
        ensure!(
            !self.pd.is_null() && !self.cq.is_null(),
            "a queue pair needs a domain and a completion queue"
        );
        let cap = Cap {
            max_send_wr: 32,
            max_recv_wr: 32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut wanted = QpInitAttr {
            qp_context: null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: null_mut(),
            cap,
            qp_type: 2,
            sq_sig_all: 0,
        };
        self.qp = call!(
            self,
            c"ibv_create_qp",
            fn(*mut c_void, *mut QpInitAttr) -> *mut Qp,
            self.pd,
            &raw mut wanted
        );
        ensure!(!self.qp.is_null(), "ibv_create_qp: {}", io::Error::last_os_error());
        Ok(())
    }

    pub(crate) fn make_init(&mut self) -> Result<()> {
        // State, P_Key, port, access.
        let to = QpAttr { qp_state: 1, port_num: 1, qp_access_flags: ACCESS, ..QpAttr::default() };
        self.modify(to, 1 | 16 | 32 | 8, "INIT")
    }

    /// Its peer is itself: no other process has a part in what is measured.
    pub(crate) fn make_rtr(&mut self) -> Result<()> {
        let (sgid_index, dgid) = self.gid;
        let way = AhAttr {
            dgid,
            sgid_index,
            hop_limit: 64,
            dlid: self.port.lid,
            is_global: 1,
            port_num: 1,
            ..AhAttr::default()
        };
        let to = QpAttr {
            qp_state: 2,
            path_mtu: self.port.active_mtu,
            dest_qp_num: self.number()?,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ah_attr: way,
            ..QpAttr::default()
        };
        // State, way, MTU, peer, its first PSN, READs at once, timer.
        self.modify(to, 1 | 128 | 256 | 1 << 20 | 4096 | 1 << 17 | 1 << 15, "RTR")
    }

    pub(crate) fn make_rts(&mut self) -> Result<()> {
        let to = QpAttr {
            qp_state: 3,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
            ..QpAttr::default()
        };
        // State, time-out, retries of both kinds, our first PSN, READs at once.
        self.modify(to, 1 | 512 | 1024 | 2048 | 1 << 16 | 8192, "RTS")
    }

    fn modify(&mut self, mut to: QpAttr, mask: u32, state: &str) -> Result<()> {
        self.number()?;
        let qp = self.qp.cast();
        let done = call!(
            self,
            c"ibv_modify_qp",
            fn(*mut c_void, *mut QpAttr, c_int) -> c_int,
            qp,
            &raw mut to,
            mask as c_int
        );
        ensure!(done == 0, "ibv_modify_qp to {state}: {}", io::Error::from_raw_os_error(done));
        Ok(())
    }

    fn number(&self) -> Result<u32> {
        ensure!(!self.qp.is_null(), "there is no queue pair");
        // SAFETY: libibverbs made it, and its public part says its number.
        Ok(unsafe { (*self.qp).qp_num })
    }

    /// Reads 8 bytes of its own memory, and waits until that is complete.
    pub(crate) fn read(&mut self) -> Result<()> {
        self.number()?;
        ensure!(!self.mr.is_null(), "no memory is registered");
        let memory = self.memory.as_ptr() as u64;
        // SAFETY: libibverbs made the region and the context, whose public parts these are.
        let (lkey, rkey, context) =
            unsafe { ((*self.mr).lkey, (*self.mr).rkey, &*self.context.cast::<Context>()) };
        let (post, poll) = (
            context.post_send.context("it cannot post")?,
            context.poll_cq.context("it cannot poll")?,
        );
        let mut to = Sge { addr: memory + 8, length: 8, lkey };
        let mut wr = SendWr {
            wr_id: 7,
            next: null_mut(),
            sg_list: &raw mut to,
            num_sge: 1,
            opcode: 4,
            send_flags: 2,
            imm_data: 0,
            remote_addr: memory,
            rkey,
            rest: [0; 19],
        };
        let mut bad = null_mut();
        // SAFETY: a queue pair that stands, and a work request over registered memory that outlives it.
        let posted = unsafe { post(self.qp.cast(), &raw mut wr, &raw mut bad) };
        ensure!(posted == 0, "ibv_post_send: {}", io::Error::from_raw_os_error(posted));
        let begun = Instant::now();
        let mut wc = Wc::default();
        loop {
            // SAFETY: a completion queue that stands, and room for one completion.
            match unsafe { poll(self.cq, 1, &raw mut wc) } {
                0 if begun.elapsed() > STALL => bail!("a READ of its own memory does not complete"),
                // The device may need the processor that this waits on.
                0 => std::thread::yield_now(),
                1 => break,
                error => bail!("ibv_poll_cq: {error}"),
            }
        }
        ensure!(wc.status == 0 && wc.wr_id == 7, "the READ completed with status {}", wc.status);
        Ok(())
    }

    /// The functions by which the open device is polled, which are its provider's.
    pub(crate) fn provider(&self) -> Option<*const c_void> {
        if self.context.is_null() {
            return None;
        }
        // SAFETY: libibverbs made the context, whose public part this is.
        let context = unsafe { &*self.context.cast::<Context>() };
        context.poll_cq.map(|poll| poll as *const c_void)
    }

    /// The counters of the fast library, if that is loaded.
    pub(crate) fn counts(&self) -> Option<Vec<u64>> {
        self.symbol(c"elver_fastverbs_counts").ok()?;
        let mut counts = vec![0u64; 64];
        let told = (|| -> Result<usize> {
            Ok(call!(
                self,
                c"elver_fastverbs_counts",
                fn(*mut u64, usize) -> usize,
                counts.as_mut_ptr(),
                counts.len()
            ))
        })()
        .ok()?;
        counts.truncate(told);
        Some(counts)
    }
}
