//! `libibverbs.so.1` on Elver's soft device: programs that are linked to libibverbs run unmodified on
//! a machine with no RDMA device. `docs/preload.md` says what works and what does not.
//!
//! Each process has one [`elver_soft::SoftDevice`] behind one lock, shared by all contexts. Who polls
//! or posts drives it; while nobody polls, a thread does, which sleeps on the device's socket.
//!
//! The process's own memory is registered as it stands. The kernel would pin it; here it must stay
//! mapped until it is deregistered.
//!
//! Nothing unwinds into a program: each call is [`guard`]ed, and a panic becomes an errno.
//!
//! # Where what is
//!
//! Most files have the calls for one kind of object, and what stands behind them.
//!
//! | folder | in it | told in |
//! | --- | --- | --- |
//! | `device`, `context` | the list of devices, which has one; contexts: made, imported, closed. `left`: what a program leaves of one that it closes; `told`: contexts as this library knows them, and their asynchronous events | |
//! | `engine` | the one device of the process behind its lock, and who drives it; `state`: what the lock protects; `tell`: whom it tells of events; `attend`: what its thread does, `polls`: what a program's polls tell that, `watched`: what ends its sleep; `addresses`: at which address it is; `doze`: until when its thread sleeps; `lookout`: when it looks on before it does; `vain`: when who polls in vain lets others run; `threads`: threads of the library's own | How processes find each other |
//! | `wishes` | what `elver run` asks of the device; `faults`: what fails of what is posted; `outage`: the port that goes down and comes up | docs/ci.md |
//! | `caps`, `names`, `vendor` | what device and port say of themselves; texts for numbers; who is said to have made the device | What is there |
//! | `pd`, `parents` | protection domains; parent domains, and what was made with each | What is there |
//! | `memory`, `region` | memory regions; what all kinds of them have. `buffers`: registration by attributes; `odp`: on demand; `dm`, `device_memory`: memory of the device, and how much there is; `mw`: memory windows | What is there |
//! | `cq`, `cq_ex` | completion queues, plain and extended; `channel`: completion channels; `events`: waiting; `moderation`: events that wait for more; `timed`: time stamps; `ring`: descriptors that are readable as often as somebody rang; `rung`: events, each with its ring | What is there |
//! | `qp`, `qp_ex` | queue pairs, plain and extended; `wr`: work requests, from libibverbs' form to the device's; `staged`: those between `ibv_wr_start` and `ibv_wr_complete` | What is there |
//! | `srq`, `xrc`, `xrc_table` | shared receive queues; XRC, and what a process has of it | What is there |
//! | `ah`, `service`, `mcast`, `link_layer` | address handles, what of an address vector is kept for who asks, multicast groups, LIDs of a port that is InfiniBand's | Multicast |
//! | `owned`, `belongs` | objects as programs see them, and what stands behind each; to which context one belongs | |
//! | `layout` | libibverbs' structures, as rdma-core 44 lays them out | What does not |
//! | `mlx5` | libmlx5's calls for DC: `device`, `cq`, `qp`; `layout`: its structures; `absent`: what would reach hardware | DC |
//! | `private` | what other libraries of rdma-core need in order to load | What does not |
//! | `direct` | READs and WRITEs in the memory of other processes of the user. `hub`: those that are known; in it `asking`: how they find each other, by the sockets of `socket`, and `watch`: the thread that answers; `meeting`, `shunned`: whom this one is just meeting, and whom it does not ask again for a while; `peer`: another process; `identity`: which process a number means | Between processes of one user |
//! | | `table` (`entry`, `presence`), `told`: what a process tells of itself, and the words of it; `objects`: how that comes, changes and goes; `taking`: how it is taken back; `mapped`: files that both have; `fuzzed`: all of that as any bytes | |
//! | | `run`: the WRs that are executed here, `stage`: those that one system call executes; `beside`, `lane` (`packets`): packets that pass through memory; `model` in both, `atomic`: the orders of these by loom | |
//! | `cm` | `/dev/infiniband/rdma_cm`. `fd`: descriptors of event channels; `command`, `calls`: what librdmacm writes; `abi`, `address`, `copies`: its forms and the kernel's | rdma_cm |
//! | | `state`: ids and connections; `events`: what happens to them; `carrier`: QP 1; `multicast`: joins | |
//! | | `bound`: addresses and families that a port is had at; `ports`: who listens on it; `drawn`: ports that connections are from; `ends`: processes that end without a word; `parting`: channels that are closed while threads wait at them | |
//! | `paths`, `tree`, `sysfs` | look-ups of names in libc; the device's files that some of them lead to; what libibverbs reads there for others | What is there |
//! | `fork`, `leaving` | what a child of `fork` does not have; ends of a process that run no handler | What does not |
//! | `errno` | errors as libibverbs tells them, and the guard of its calls | |
//!
//! The last column has sections of `docs/preload.md`, where it names no other document.
// Every exported function takes what libibverbs' function of that name takes, whose manual page states
// the contract: pointers come from this library or are what the page asks for, and are not freed
// while in use. The SAFETY reasons below refer to it as the verbs contract.
#![allow(clippy::missing_safety_doc)]

mod addresses;
mod ah;
mod belongs;
mod buffers;
mod caps;
mod channel;
pub mod cm;
mod context;
mod cq;
mod cq_ex;
mod device;
mod device_memory;
mod direct;
mod dm;
mod doze;
mod engine;
mod errno;
mod events;
mod faults;
mod fork;
mod gid_index;
mod identity;
pub mod layout;
mod leaving;
mod left;
mod link_layer;
mod lookout;
mod mcast;
mod memory;
pub mod mlx5;
mod moderation;
mod mw;
mod names;
mod odp;
mod outage;
mod owned;
mod parents;
mod paths;
mod pd;
mod private;
mod qp;
mod qp_ex;
mod region;
mod ring;
mod rung;
mod service;
mod srq;
mod staged;
mod sysfs;
mod threads;
mod timed;
mod told;
mod tree;
mod vain;
mod vendor;
mod wishes;
mod wr;
mod xrc;
mod xrc_table;

pub use errno::guard;

/// What other processes tell, as any bytes: `fuzz` calls it.
#[doc(hidden)]
pub mod fuzzed {
    pub use crate::direct::fuzzed::{greeting, lane, table};
}
