//! The node's socket, where containers find it also when the node has started again, with a new socket of the same name.
//!
//! A directory of the orchestrator's own has nothing but a link to it, and is mounted: the socket's directory may have what is
//! none of the containers' business.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::protocol::{NODE_DIRECTORY, NODE_SOCKET};

/// How containers get the socket.
#[derive(Debug)]
pub(super) enum Node {
    /// By the directory with the link.
    Linked {
        /// The node's own.
        socket: PathBuf,
        /// That directory.
        directory: PathBuf,
    },
    /// By itself, since it is of another file system than the directory: a container keeps the one that there is when it
    /// starts.
    Mounted(PathBuf),
}

impl Node {
    /// Decides which, and makes the link if the node is there.
    pub(super) fn new(socket: &Path, directory: PathBuf) -> Node {
        let node = Node::Linked { socket: socket.into(), directory };
        match node.renew() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                eprintln!(
                    "cannot link {}: {error}; containers that run lose their RDMA when the node starts again",
                    socket.display()
                );
                Node::Mounted(socket.into())
            }
            _ => node,
        }
    }

    /// Makes the link anew if the node has another socket. One that is not there, the link is not either.
    pub(super) fn renew(&self) -> io::Result<()> {
        let Node::Linked { socket, directory } = self else { return Ok(()) };
        let link = directory.join(Path::new(NODE_SOCKET).file_name().unwrap_or_default());
        let which = |file: &Path| std::fs::metadata(file).map(|file| (file.dev(), file.ino()));
        let linked = which(&link).ok();
        match which(socket) {
            Ok(there) if Some(there) == linked => Ok(()),
            Ok(_) => {
                let new = link.with_extension("new");
                remove(&new)?;
                std::fs::hard_link(socket.canonicalize()?, &new)?;
                std::fs::rename(&new, &link)
            }
            Err(error) => {
                remove(&link)?;
                Err(error)
            }
        }
    }

    /// What is mounted, and where.
    pub(super) fn mount(&self) -> Option<(&Path, &'static str)> {
        match self {
            Node::Linked { directory, .. } => Some((directory, NODE_DIRECTORY)),
            Node::Mounted(socket) => socket.exists().then_some((socket, NODE_SOCKET)),
        }
    }
}

fn remove(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn the_link_leads_to_the_node_that_there_is() {
        let place = tempfile::tempdir().unwrap();
        let (socket, directory) = (place.path().join("elverd.sock"), place.path().join("node"));
        std::fs::create_dir(&directory).unwrap();
        let node = Node::new(&socket, directory.clone());
        let link = directory.join("elverd.sock");
        assert!(!link.exists());
        for _ in 0..2 {
            let listener = UnixListener::bind(&socket).unwrap();
            assert!(UnixStream::connect(&link).is_err());
            node.renew().unwrap();
            assert!(UnixStream::connect(&link).is_ok());
            drop(listener);
            std::fs::remove_file(&socket).unwrap();
        }
        assert_eq!(node.renew().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!link.exists());
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    }
}
