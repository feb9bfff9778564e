//! Serverless functions whose RDMA is ready when they start: the serverless side of Swift (seed paper, §4).
//!
//! [`orchestrator::serve`] takes requests and runs them in containers of a real OCI runtime. How a
//! request starts follows from what exists ([`schedule`]): cold in a new container, warm in a new INIT
//! process of a container of the same owner, or as a fork of an INIT process, which has imported the
//! handler. In each container `elver-init` ([`init`]) is the first process. Functions speak the AWS
//! Lambda Runtime API.
//!
//! # Trade-offs
//! - A container is one owner's, and runs as that owner's user of the host, without capabilities, in a
//!   read-only root and a network namespace with nothing but loopback. Memory and processes are bounded by
//!   resource limits; by a cgroup only where the configuration asks for it, since those are not to be had everywhere.
//! - An INIT process runs its first request itself, and is not forked before that has ended: requests
//!   that come meanwhile start warm.
//! - A child runs one request and ends.
//! - What handlers in Python have of RDMA is Python (`python/elver_context.py`), over the module of
//!   elver-python: sessions can be inherited from the process alone that prepared them, and that is Python's.
//!
//! # Where what is
//!
//! | folder | in it | paper |
//! | --- | --- | --- |
//! | `schedule` | who runs which request, without IO; `words`: what it is told, and what it says | 4.1 |
//! | | `placing`: what exists chooses the start; `places`: containers, and INIT processes in them; `answering`: requests that are answered | 4.1, figure 4 |
//! | | `children`: one for each request; `ending`: what ends, and when | 4.1.3, 4.1.4 |
//! | `orchestrator` | what the schedule decides, done: `core`: what its tasks share, and its actions; `tables`: what it has of each container, process and request; `terms`: what the configuration comes to; `stuck`: containers that do not end; `code_checks`: checks of code, in threads | 4.1 |
//! | | `front`, `callers`: the door for callers, and who is connected to it; `api`, `said`: Lambda's Runtime API, and what processes say by it; `http`: how both doors speak | |
//! | | `control`: orders to a container's `elver-init`, and its reports; `node`: the node's socket, for containers | |
//! | | `limits`: how many connections there may be; `room`: room for bodies | |
//! | `init` | `elver-init`, a container's first process: `runtime`: an INIT process; `connect`: what it makes ready for RDMA | 4.1.2, 4.1.3 |
//! | | `control`: its socket to the orchestrator; `event`: what its threads tell; `relay`: loopback's TCP to the Runtime API; `log`; `reaper`: waits for every end | |
//! | `action` | an action's container under OpenWhisk: `connections`: how many at once; `code`: what `/init` brings; `launcher`: its process; `group`: what that has started | |
//! | `protocol` | what orchestrator, `elver-init` and runtimes say to each other | |
//! | `bundle`, `containers`, `seccomp` | a container's configuration; the runtime's command line; the calls that it does not have | |
//! | `code` | whether a function's code is where it is said to be, whoever else there is on the host | |
//! | `config` | what the platform's owner says: `sections`: what there may be; `file`, `check`: how it is read, and what is refused; `error` | |
//! | `state` | what the orchestrator has in files, and that it alone works there | |
//! | `client` | asking an orchestrator | |
//! | `accepting`, `http`, `heads`, `progress`, `gids` | taking connections; HTTP of small services; how long heads of requests may take; a stream whose peer must read; GIDs in what comes in | |
//! | `bin` | the programs `elver-init` and `elver-action` | |
//! | `python/` | beside `src`: `bootstrap.py`, an INIT process in Python; `elver_context.py`: what a handler has of RDMA; `_elver_assignments.py`: the QP Table and the Assignment Table; `_elver_strays.py`: what children leave behind; `action.py`: actions | 4.1.1 to 4.1.4 |

#![forbid(unsafe_code)]

mod accepting;
pub mod action;
pub mod bundle;
pub mod client;
mod code;
pub mod config;
pub mod containers;
mod gids;
mod heads;
mod http;
pub mod init;
pub mod orchestrator;
mod progress;
pub mod protocol;
pub mod schedule;
mod seccomp;
pub mod state;

pub use config::Config;
