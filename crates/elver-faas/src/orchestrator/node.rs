//! The node's socket, where containers find it also when the node has started again, with a new socket of the same name.
//!
//! A directory of the orchestrator's own has nothing but a link to it, and is mounted: the socket's directory may have what is
//! none of the containers' business.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::protocol::{NODE_DIRECTORY, NODE_SOCKET};

/// How containers get the socket: by the directory with the link; or by itself where that cannot be made, as when the socket is of
/// another file system than the directory. A container keeps the one that there is when it starts then.
#[derive(Debug)]
pub(super) struct Node {
    /// The node's own.
    socket: PathBuf,
    directory: PathBuf,
    is_linked: Cell<bool>,
    /// What was wrong at the last try, which may pass.
    wrong: RefCell<Option<String>>,
}

impl Node {
    /// Makes the link if the node is there.
    pub(super) fn new(socket: &Path, directory: PathBuf) -> Node {
        let (is_linked, wrong) = (Cell::new(true), RefCell::default());
        let node = Node { socket: socket.into(), directory, is_linked, wrong };
        node.look();
        node
    }

    /// Makes the link anew if the node has another socket. Where none can ever be made, says so, and does without from then on;
    /// says what else is wrong once, and tries again. While the node is away there is nothing to link.
    pub(super) fn look(&self) {
        if !self.is_linked.get() {
            return;
        }
        let error = match self.renew() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => error,
            _ => return drop(self.wrong.take()),
        };
        let socket = self.socket.display();
        if stays_so(&error) {
            eprintln!(
                "cannot link {socket}: {error}; containers that run lose their RDMA when the node starts again, and those that were \
                 made before it started have none"
            );
            self.is_linked.set(false);
            return;
        }
        let wrong = Some(error.to_string());
        if *self.wrong.borrow() != wrong {
            eprintln!(
                "cannot link {socket}: {error}; containers have no RDMA until it can be, which is tried again"
            );
            self.wrong.replace(wrong);
        }
    }

    /// One that is not there, the link is not either.
    fn renew(&self) -> io::Result<()> {
        let Node { socket, directory, .. } = self;
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
        match self.is_linked.get() {
            true => Some((&self.directory, NODE_DIRECTORY)),
            false => self.socket.exists().then_some((&self.socket, NODE_SOCKET)),
        }
    }
}

/// Whether no link to the socket can ever be made: the file systems are two, or have no links, or the system allows none to it.
fn stays_so(error: &io::Error) -> bool {
    let never = [Errno::XDEV, Errno::PERM, Errno::OPNOTSUPP, Errno::NOSYS, Errno::MLINK];
    Errno::from_io_error(error).is_some_and(|error| never.contains(&error))
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

    /// After one error of any kind containers lost their RDMA when the node started again.
    #[test]
    fn what_passes_ends_no_link_for_good() {
        let place = tempfile::tempdir().unwrap();
        let (socket, directory) = (place.path().join("elverd.sock"), place.path().join("node"));
        std::fs::write(&directory, "").unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        let node = Node::new(&socket, directory.clone());
        assert!(node.wrong.borrow().is_some());
        std::fs::remove_file(&directory).unwrap();
        std::fs::create_dir(&directory).unwrap();
        node.look();
        assert_eq!(*node.wrong.borrow(), None);
        assert_eq!(node.mount(), Some((&*directory, NODE_DIRECTORY)));
        assert!(UnixStream::connect(directory.join("elverd.sock")).is_ok());
    }

    /// It was taken for linked for good, and no container found it.
    #[test]
    fn a_node_that_starts_later_and_cannot_be_linked_is_mounted() {
        let place = tempfile::tempdir().unwrap();
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        let (socket, directory) = (shared.path().join("elverd.sock"), place.path().join("node"));
        std::fs::create_dir(&directory).unwrap();
        let device = |path: &Path| std::fs::metadata(path).unwrap().dev();
        assert_ne!(device(shared.path()), device(&directory), "two file systems are needed");
        let node = Node::new(&socket, directory.clone());
        assert_eq!(node.mount(), Some((&*directory, NODE_DIRECTORY)));
        let _listener = UnixListener::bind(&socket).unwrap();
        node.look();
        assert_eq!(node.mount(), Some((&*socket, NODE_SOCKET)));
        std::fs::remove_file(&socket).unwrap();
        node.look();
        assert_eq!(node.mount(), None);
    }
}
