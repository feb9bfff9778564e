//! What a handler learns of its request, and where its RDMA comes from.

use std::time::{Duration, SystemTime};

use crate::ahead::{self, Ahead};
use crate::api::Invocation;
use crate::assignments::QpNumber;
use crate::error::Error;
use crate::policy::connect_options;
use crate::rdma::Rdma;

/// Where a request's RDMA comes from.
pub(crate) enum Source<'a> {
    /// The INIT process's own.
    Own(&'a mut Ahead),
    /// A session that its parent assigned, by its first QP.
    Inherit(&'a Ahead, QpNumber),
    /// Nobody made anything.
    Open,
}

/// A request.
pub struct Context<'a> {
    /// Its number, as Lambda has them.
    pub request_id: String,
    /// How it was started: `cold`, `warm` or `fork`.
    pub start: String,
    /// GIDs of the function's configuration.
    pub destinations: Vec<String>,
    deadline: SystemTime,
    source: Source<'a>,
    rdma: Option<Rdma>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(
        invocation: &Invocation,
        destinations: Vec<String>,
        source: Source<'a>,
    ) -> Context<'a> {
        Context {
            request_id: invocation.id.clone(),
            start: invocation.start.clone(),
            destinations,
            deadline: invocation.deadline,
            source,
            rdma: None,
        }
    }

    /// How long until this process is killed.
    pub fn time_left(&self) -> Duration {
        self.deadline.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO)
    }

    /// The request's RDMA. A child takes its session over at the first call.
    ///
    /// # Errors
    /// [`Error::NoNode`] on a platform without one, [`Error::Connections`] on one that says of connections what
    /// this library does not know; else what the node says.
    pub fn rdma(&mut self) -> Result<&mut Rdma, Error> {
        let rdma = match self.rdma.take() {
            Some(rdma) => rdma,
            None => {
                let ready = match &mut self.source {
                    Source::Own(ahead) => Some(ahead.own()),
                    Source::Inherit(ahead, first) => Some(ahead.inherit(*first)),
                    Source::Open => None,
                };
                if let Some(Err(error)) = &ready {
                    // As when the node has started again since.
                    eprintln!("elver-handler: what was made ready cannot be had: {error}");
                }
                match ready {
                    Some(Ok(rdma)) => rdma,
                    Some(Err(_)) | None => Rdma::own(ahead::open()?, connect_options()?)?,
                }
            }
        };
        Ok(self.rdma.insert(rdma))
    }
}
