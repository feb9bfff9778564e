//! Elver for Python: the module `elver`.
//!
//! ```python
//! import elver
//! session = elver.Session()                    # this host's node
//! memory = session.alloc(4096)                 # a buffer: memoryview(memory)[:5] = b"elver"
//! vqp = session.connect("10.0.0.2")            # connected in about a microsecond
//! vqp.read(memory, 0, 64, address, rkey)       # a peer's memory; write, fetch_add and compare_swap likewise
//! heirs = session.prepare(4, ["10.0.0.2"])     # for children: after os.fork, heirs.take(number)
//! ```
//!
//! Calls whose names end in `_async` give what a task of asyncio awaits. The others block; other threads of Python run, and
//! signals are heeded, every 10 ms of a wait for a peer. What the node alone answers (`Session()`, `alloc`, `bind`, `take`)
//! it answers at once, and that is waited for without them. A session belongs to the thread that opened it, and using it from
//! another one is an error. Errors are `elver.Error`, with the text of the crate `elver`; a wait that is over is
//! `TimeoutError`.
//!
//! `unsafe` stands in `memory`, for the buffer.

mod awaiting;
mod connecting;
mod ends;
mod errors;
mod memory;
mod own;
mod policy;
mod session;
mod taking;
mod vqp;
mod waiting;
mod waits;

use pyo3::prelude::*;

/// RDMA for Python, at the node of this host: sessions, virtual queue pairs, and memory as buffers.
#[pymodule]
mod elver {
    #[pymodule_export]
    use crate::awaiting::Awaiting;
    #[pymodule_export]
    use crate::connecting::Connecting;
    #[pymodule_export]
    use crate::errors::Error;
    #[pymodule_export]
    use crate::memory::Memory;
    #[pymodule_export]
    use crate::session::{Heir, Heirs, Preparing, Session};
    #[pymodule_export]
    use crate::vqp::Vqp;

    use pyo3::prelude::*;

    /// What a platform of serverless functions has made ready for the request that this process has: `device`, `pd`, `qps`
    /// by destination, and `mr`. Such a platform has its module `elver_context` in the process, whose `current()` says.
    #[pyfunction]
    fn context(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let modules = py.import("sys")?.getattr("modules")?;
        let platform = modules.call_method1("get", ("elver_context",))?;
        if platform.is_none() {
            let text = "no platform has started this process; open a session: elver.Session()";
            return Err(Error::new_err(text));
        }
        platform.call_method0("current")
    }
}
