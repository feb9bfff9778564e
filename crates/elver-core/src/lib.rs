//! KRCORE's virtual queue pairs (Wei et al., USENIX ATC 2022, sections 4.1 to 4.6) as a sans-IO
//! library: many VQPs of many clients on a fixed pool of DC queue pairs and a few RC ones, over any
//! [`elver_verbs::Device`].
//!
//! A [`Core`] owns a device and all that is on it. It has no thread, no clock and no socket: its
//! host calls [`Core::poll`] with the time, and takes completions and events. Clients do not trust
//! each other, and the core trusts none of them: whatever one posts, registers or leaves behind
//! ends in errors of its own, and nothing that a client or a peer does takes a shared queue pair
//! from the others. Peers' cores are trusted as far as they own what they send; what they send is
//! checked all the same.
//!
//! # How a WR travels
//!
//! ```text
//!   post_send ─▶ checks ─▶ the VQP's ring ──▶ lane: a stream of a DCI, or an RC QP ─▶ device
//!                             │    ▲                │
//!                 waits for: a connection, a        └─ one CQ for all ─▶ complete ─▶ in order
//!                 look-up of the peer's region,        to the client's completions
//!                 room on the lane, a transfer,
//!                 tokens of its class
//! ```
//!
//! A WR stays in its VQP's ring until its completion is told, so that it can be posted again when
//! another VQP's fault flushed it. When nothing is in its way, it goes to the device within the
//! call that posts it, and nothing on that way allocates. Work on the fast path does not grow with
//! the number of VQPs, peers or regions.
//!
//! # Where what is
//!
//! | folder | in it | paper |
//! | --- | --- | --- |
//! | `core` | the state, polling; `arrivals`, `heard`: what is taken from the device; `info`: what a core tells of itself | |
//! | `config`, `error`, `event`, `ids` | what a core is made with; why a call is refused; completions and events; names of clients and VQPs | |
//! | `effects`, `apply` | what one part leaves to be done by others, and having them do it | |
//! | `client` | what a client may have and has; `owned`: clients, and their VQPs; `lifecycle`, `end`: both coming and going; `accept`: VQPs that messages made; `ports`; `all`: these together; `tell`: the one place where a WR's end is told | 4.1 |
//! | `vqp` | one VQP: `send_ring`, `recv_ring`, `sq_entry`: its WRs; `phase`: where it stands; and `credit` (told in `exchange`), on which it sends to a receiver that is slower | 4.1 |
//! | `connect` | `qconnect` and `warm`; `attach`: tying a VQP to peer and lane; `found`, `ended`: connects that have waited | 4.1, algorithm 1 |
//! | `datapath` | `post`: checks; `plain`: the short way of most WRs; `burst`: what goes to the device; `round_robin`: turns among VQPs on a lane; `complete`, `retire`, `fail`: completions in order; `wr_id` | 4.4, algorithm 2 |
//! | | `recovery`, `resume`, `outage` (`restart`): failed lanes, DCIs that the device does not set going again; `stalls`, `give_up`: lanes whose first WR does not end; `lanes`: their lists; `ops`, `own_ops`, `op_ended`: the core's own READs and messages | 4.4 |
//! | | `qos` (`release`): priority classes | arXiv version, 4.7 |
//! | `messaging` | `message`: headers; `outgoing`; `inbox`: ports, accepting; `at_once`: the short way into a receive that is there; `serve`: into receives; `incoming`, `backlog`, `kept`: what of them waits; `landing` (`write`): receives that are not at hand | 4.1, 4.4 |
//! | | `held`: what waits for receives; `unread`: long messages on their way; `notes`: what waits to be told to peers; `tell`: telling it; `refusals`, `refuse`: senders of whom nothing more is taken, since one message was refused | 4.4 |
//! | | `rendezvous`, `gather`: long messages, read by the receiver; `inquiry`, `named`, `revoke`: what two cores tell each other of them, and whose they are when one fails | 4.5 |
//! | `memory` | `mr`, `regions`: local regions, and when a region's leases end; `valid_mrs`: ValidMR; `mr_store`: MRStore, peers' regions with their leases | 4.2 |
//! | | `openings`, `share`: keys under which receivers READ long messages | 4.5 |
//! | `discovery` | `peer`, `known`: the DCCache; `servers`: the nearest meta server; `guesses`: who guesses keys of regions | 4.2 |
//! | | `lookups`: nodes and regions by READs, coalesced, admitted, failing over. `nodes`, `regions`: which, and whose turn is next (`turns`); `run`, `run_regions`: running them; `found`: who goes on then; `warms` | 4.2 |
//! | | `meta`, `served`, `own_table`: the meta server's role, its table, looking up in that itself; `strangers` (`admit`): whose requests are answered | 4.2 |
//! | `pool` | physical queue pairs: `create`: how many; `buffers`; `lane`, `lanes`; `index_vec`: vectors with places of a type | 4.3 |
//! | `rc` | which RC queue pairs there are: `pool`, `link`; `heat`: how hot a peer is; `ud`: what carries requests; `back_off`; `fate`, `path`, `suspect`: whether what one flushed was executed | 4.2, 4.3 |
//! | | `links`: their handshakes and ends. `ask`, `handshake`: to a link that takes WRs; `closing`, `leases`, `ended`, `reminders`: its end, and a peer that has not heard of it; `fate`: how far its ends got | 4.2, 4.3 |
//! | | `needed`, `attend`: what is looked after, once a poll; `requests`, `past`: what peers are asked, and what they were before; `waiting` (`serve`, `refuse`, `sweep`), `laneless`: who waits for a link; `audit` | 4.2, 4.3 |
//! | | `transfer`, `wanted`: moving VQPs to them and back, and those that have no lane | 4.6 |
//! | `keep_alive` | whether the peers of VQPs are there: `watch`: a node that is asked; `port`: one of its ports; `answer`: questions of peers; `attend`: what is done, and whose VQPs fail | |
//! | `slots`, `due`, `timers` | tables with ids that miss, what is due at a time, all that is done by the clock | |
//! | `stats`, `latency` | counters; how long WRs took, of a sample | |
//! | `audit` | every count against what it counts, for tests | |
//!
//! The checks of what cannot be (`bug!`, `count_off!`, `less!`) are elver-verbs'.
//!
//! # What differs from KRCORE
//!
//! Peers are spread over the streams of the DCIs by their GID, and what is posted to one peer shares
//! a stream: a peer that does not answer stops few others, and those only until its stream is reset.
//! A message carries nothing of its sender's but the VQP: what is believed of a node comes from a meta
//! server's table or from the registry, and who sent a message from the device. So a VQP back to a
//! sender stands at once, as in KRCORE, but the first reply to a node of which nothing is known, or the
//! first READ of a long message of its, costs a look-up. For the same reason control requests are
//! answered for nodes that are known, and others are looked up first.
//! A VQP that moves between DC and RC waits for the last WR of its last burst, which is signalled
//! anyway, and not for a fake request. An RC QP is used from the side that was asked for it only when
//! something has come over it, and vanishes only when both sides have left it.
//! WRITE_WITH_IMM is a WRITE and a short message behind it. Windows belong to a queue pair, and are
//! not offered on VQPs.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[macro_use(bug, count_off, less)]
extern crate elver_verbs;

mod apply;
mod audit;
mod client;
mod config;
mod connect;
mod core;
mod datapath;
mod discovery;
mod due;
mod effects;
mod error;
mod event;
mod ids;
mod keep_alive;
mod latency;
mod memory;
mod messaging;
mod pool;
mod rc;
mod slots;
mod stats;
mod timers;
mod vqp;

pub use audit::Holdings;
pub use config::{ClientLimits, Config, QosConfig, StormConfig, TransferConfig};
pub use core::Core;
pub use elver_control::{
    Answer, CONTROL_BYTES_MAX, ControlBody, ControlError, ControlMessage, META_SERVER_BYTES,
    MetaServer, NODE_RECORD_BYTES, NodeRecord, PORTS_ASKED, RcEnd, RecordError, Refusal, Request,
    Shortage, Terms,
};
pub use elver_random::Seed;
pub use elver_verbs::{Class, ConnectOptions, Policy, Via, VqpState};
pub use error::{ConnectError, CoreError};
pub use event::{Completion, Event};
pub use ids::{ClientId, VqpId};
pub use latency::{Histogram, WrKind};
pub use memory::regions::OpenRegion;
pub use messaging::landing::LANDINGS_MAX;
pub use stats::{PeerInfo, Stats};
pub use vqp::{VqpInfo, VqpInit};
