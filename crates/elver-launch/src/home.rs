//! Nodes that ranks are at: the host's, named ones, or one that ends with them.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use elver::Session;
use elver_console::Failure;
use elver_node::config::Config;
use elver_node::{Node, NodeThread};
use elver_portal::Listener;
use tempfile::TempDir;

/// Where ranks are, and where they meet.
pub(crate) struct Home {
    session: Session,
    /// Of the nodes; none for the default one.
    sockets: Vec<PathBuf>,
    /// Behind the session, which ends first.
    _own: Option<OwnNode>,
}

/// A node that no other process knows of.
struct OwnNode {
    /// Behind it goes the folder with its socket.
    _thread: NodeThread,
    folder: TempDir,
}

impl Home {
    pub(crate) fn find(sockets: &[PathBuf], own: bool) -> Result<Home, Failure> {
        if own {
            return Ok(Home::own()?);
        }
        let sockets = sockets.iter().map(std::path::absolute).collect::<Result<Vec<_>, _>>();
        let sockets = sockets.context("the directory of this process is gone")?;
        let opened = match sockets.first() {
            Some(path) => Session::connect(path),
            None => Session::connect_default(),
        };
        match opened {
            Ok(session) => Ok(Home { session, sockets, _own: None }),
            Err(elver::Error::NoDaemon { .. }) if is_default(&sockets) => Ok(Home::own()?),
            Err(error) => Err(Failure::unusable(error)),
        }
    }

    fn own() -> Result<Home> {
        let own = OwnNode::start().context("cannot start a node for the ranks")?;
        let path = own.path();
        Ok(Home { session: Session::connect(&path)?, sockets: vec![path], _own: Some(own) })
    }

    /// At the first of the nodes.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// The socket of a rank's node, if it is not the default one.
    pub(crate) fn socket_of(&self, rank: u32) -> Option<&Path> {
        let at = rank as usize % self.sockets.len().max(1);
        self.sockets.get(at).map(PathBuf::as_path)
    }
}

/// Whether nobody has said which node is meant.
fn is_default(sockets: &[PathBuf]) -> bool {
    sockets.is_empty()
        && std::env::var_os(elver::SOCKET_VARIABLE).is_none_or(|path| path.is_empty())
}

impl OwnNode {
    fn start() -> Result<OwnNode> {
        // What a rank does to memory that it shares with this process ends that rank's session.
        elver_memory::fault::survive_faults()?;
        // Its owner's alone.
        let folder = tempfile::Builder::new().prefix("elver-launch-").tempdir()?;
        let listener = Listener::bind(&folder.path().join(SOCKET))?;
        let mut config = Config::default();
        // No other node needs to know of it.
        config.node.address = Ipv4Addr::LOCALHOST.into();
        config.node.udp_port = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let thread = Node::open(config, Some(listener))?.spawn()?;
        Ok(OwnNode { _thread: thread, folder })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(SOCKET)
    }
}

const SOCKET: &str = "node.sock";
