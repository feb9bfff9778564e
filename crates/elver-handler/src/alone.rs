//! The RDMA of a process that is not forked, as those of Lambda's own clients, which take one request after the other.

use crate::ahead;
use crate::error::Error;
use crate::policy::connect_options;
use crate::rdma::Rdma;

impl Rdma {
    /// A session of this process's own at the platform's node, with connections to the function's destinations, which are
    /// begun and not waited for, and 32 KB. It is for programs that [`serve`](crate::serve) does not run: opened before
    /// the first request, or in it, it is there for all that come. When the node has started again, operations end with
    /// [`elver::Error::NodeGone`], and another one is to be opened. It stays on its thread, and its calls block.
    ///
    /// # Errors
    /// [`Error::NoNode`] on a platform without one, [`Error::Connections`] on one that says of connections what this
    /// library does not know, [`Error::NoGid`]; else what the node says.
    pub fn open() -> Result<Rdma, Error> {
        let session = ahead::open()?;
        let named = std::env::var("ELVER_DESTINATIONS").unwrap_or_default();
        ahead::connecting(session, &ahead::gids(&named)?, connect_options()?)
    }
}
