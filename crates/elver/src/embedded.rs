//! A node inside the process (feature `embedded`).

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use elver_node::{Node, config::Config};
use elver_portal::Socket;

use crate::link::{Host, Link};
use crate::{Error, Session, SessionOptions};

impl Session {
    /// A node in this process, without a daemon, and a session at it. This thread drives the node,
    /// in every call that waits or finds nothing; a node of which others want something needs such
    /// calls from time to time ([`Session::poll`]).
    ///
    /// # Errors
    /// [`Error::Node`] if the node cannot be made: its text names the option or the limit.
    pub fn embedded(config: Config) -> Result<Session, Error> {
        EmbeddedNode::new(Node::embedded(config)?).session(SessionOptions::default())
    }

    /// Opens a session over one end of a [`Socket::pair`], whose other end a node of this process
    /// has adopted, and which a thread of its own drives.
    ///
    /// # Errors
    /// As [`Session::connect`].
    pub fn over(socket: Socket, options: SessionOptions) -> Result<Session, Error> {
        Ok(Session::of(Link::greet(Host::Apart, socket, options)?))
    }
}

/// A node that this thread drives: whenever a call on one of its sessions waits or finds nothing, and in
/// [`EmbeddedNode::poll`]. For a node on a thread of its own, give [`Session::over`] what
/// [`elver_node::NodeThread::connect`] returns.
#[derive(Clone)]
pub struct EmbeddedNode(Rc<RefCell<Node>>);

impl EmbeddedNode {
    /// Takes a node to drive.
    pub fn new(node: Node) -> EmbeddedNode {
        EmbeddedNode(Rc::new(RefCell::new(node)))
    }

    /// Opens a session.
    ///
    /// # Errors
    /// [`Error::Rejected`] if a quota of the node's is reached.
    pub fn session(&self, options: SessionOptions) -> Result<Session, Error> {
        // What others told the node while nobody drove it may leave no room for a session.
        self.poll();
        let socket = self.0.borrow().connect()?;
        let host = Host::Inline(self.0.clone());
        Ok(Session::of(Link::greet(host, socket, options)?))
    }

    /// One round of the node; whether anything happened.
    pub fn poll(&self) -> bool {
        self.0.borrow_mut().poll()
    }

    /// Calls `f` with the node. Calls on its sessions are not possible from there.
    pub fn with<R>(&self, f: impl FnOnce(&mut Node) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }
}

impl fmt::Debug for EmbeddedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedNode").finish_non_exhaustive()
    }
}
