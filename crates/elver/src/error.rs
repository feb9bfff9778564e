use std::io;
use std::path::PathBuf;

use elver_memory::MapError;
use elver_portal::{MessageError, RefusalCode, Violation, VqpState};
use elver_verbs::{AccessFault, GidParseError, PostError, SendOpcode, Wc, WcStatus};
use thiserror::Error;

use crate::path::{Paths, SOCKET_VARIABLE};

/// Why a call failed, and what to do. Every call of the crate gives it, or something that becomes it
/// by `?`: [`PostFailed`], and a completion by [`Completed::succeeded`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody listens.
    #[error("no node listens at {paths}; start `elverd`, or name its socket in {SOCKET_VARIABLE}")]
    NoDaemon {
        /// Where it was looked for.
        paths: Paths,
    },
    /// The socket cannot be connected to.
    #[error("cannot connect to the node at {path}: {reason}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// The node took the connection, or what was asked of it, and says nothing for as long as
    /// [`crate::SessionOptions::patience`] allows: not even to a question that it answers at once. What it makes of it once it
    /// goes on is undone, but for a bound port and a connect, which hold.
    #[error("the node does not answer; is `elverd` stopped, or busy beyond measure?")]
    Silent,
    /// The node lets this process in no more.
    #[error("the node refused a session: {text}")]
    Rejected {
        /// What it said.
        text: String,
    },
    /// The node is of another version.
    #[error(transparent)]
    Version(MessageError),
    /// The node has ended, or ended this session.
    #[error("the node is gone, and this session with it; open another once `elverd` runs again")]
    NodeGone,
    /// The session is another process's.
    #[error("this session belongs to the process that forked; open one in this process")]
    Forked,
    /// A session that was prepared cannot be taken over ([`crate::Heirs::take`]).
    #[error(transparent)]
    NotInherited(#[from] NotInherited),
    /// The node refused.
    #[error("{text}")]
    Refused {
        /// The reason, for programs.
        code: RefusalCode,
        /// The reason, for people.
        text: String,
    },
    /// A VQP's send or receive queue is full.
    #[error("{}", queue_full(*.capacity, *.unsignalled, *.receives))]
    QueueFull {
        /// WRs that it holds.
        capacity: u32,
        /// How many of them nobody will hear of, since they are unsignalled and no signalled WR
        /// stands behind them.
        unsignalled: u32,
        /// Whether it is the receive queue.
        receives: bool,
    },
    /// The VQP takes no send WR now.
    #[error("VQP {vqp:#x} is {}", not_connected(*.state))]
    NotConnected {
        /// The VQP.
        vqp: u32,
        /// How it is.
        state: VqpState,
    },
    /// A VQP has no such operation.
    #[error(
        "a VQP cannot do {opcode:?}; it does SEND, WRITE, READ, CMP_SWAP and FETCH_ADD, SEND and \
         WRITE with immediate data too"
    )]
    Opcode {
        /// The operation.
        opcode: SendOpcode,
    },
    /// A WR was refused when it was posted.
    #[error("{}{}", .0, remedy(.0))]
    Post(#[from] PostError),
    /// A WR that was posted failed.
    #[error("the WR {} failed: {}; {}", .wc.wr_id, .wc.status, advice(.wc))]
    Completion {
        /// Its completion.
        wc: Wc,
    },
    /// The time that the caller gave has passed.
    #[error("nothing came within the time given")]
    TimedOut,
    /// A signal came while the call slept ([`crate::SessionOptions::end_on_signal`]).
    #[error("a signal came while the call waited")]
    Interrupted,
    /// Somebody ended the wait ([`crate::Waker`]).
    #[error("the wait was ended by a waker of the session's")]
    Woken,
    /// The node wrote nonsense.
    #[error("the node broke the portal's rules: {0}")]
    Violation(#[from] Violation),
    /// Memory could not be mapped.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// The node that this thread drives failed, or could not be made.
    #[cfg(feature = "embedded")]
    #[error(transparent)]
    Node(#[from] elver_node::NodeError),
    /// A call that does not fit what was asked before.
    #[error("{what}")]
    Invalid {
        /// What is wrong and what to do.
        what: &'static str,
    },
    /// A text names no GID.
    #[error(transparent)]
    Gid(#[from] GidParseError),
    /// A layout of a store that cannot be.
    #[cfg(feature = "kv")]
    #[error(transparent)]
    Layout(#[from] elver_kv::LayoutError),
    /// A store refused a change.
    #[cfg(feature = "kv")]
    #[error(transparent)]
    Table(#[from] elver_kv::TableError),
    /// A look-up in a store without an outcome.
    #[cfg(feature = "kv")]
    #[error(transparent)]
    Lookup(#[from] elver_kv::LookupError),
    /// Bytes that describe no store.
    #[cfg(feature = "kv")]
    #[error(transparent)]
    Descriptor(#[from] elver_kv::DescriptorError),
    /// An operating system call failed.
    #[error("{call}: {reason}")]
    System {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        reason: io::Error,
    },
}

/// Why a process does not get a session that was prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotInherited {
    /// It is the one that prepared them.
    #[error(
        "this process prepared the sessions for its children; fork, and take one in the child, or open \
         one here (Session::connect)"
    )]
    Parent,
    /// It is a child's child.
    #[error(
        "the sessions are for children of the process that prepared them, and this is a child's child; \
         open a session here (Session::connect)"
    )]
    Grandchild,
    /// It has had one.
    #[error("this process has taken session {heir} of the set; a child takes one")]
    Twice {
        /// The one that it took.
        heir: u32,
    },
    /// Another has it.
    #[error("session {heir} of the set is process {pid}'s; take one that is free (Heirs::state)")]
    Taken {
        /// Which was wanted.
        heir: u32,
        /// Whose it is, as the node numbers processes.
        pid: i32,
    },
    /// It is being made, or made anew.
    #[error(
        "session {heir} of the set is not ready: the node makes it, or is gone; try again, or take another"
    )]
    Making {
        /// Which was wanted.
        heir: u32,
    },
    /// There is none of that number.
    #[error("there is no session {heir}: the set has {count}")]
    NoSuch {
        /// Which was wanted.
        heir: u32,
        /// How many there are.
        count: u32,
    },
}

/// WRs were posted up to one that was refused.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct PostFailed {
    /// WRs that were posted: those before the refused one.
    pub posted: usize,
    /// Why the next one was refused.
    pub error: Error,
}

impl From<PostFailed> for Error {
    fn from(failed: PostFailed) -> Error {
        failed.error
    }
}

/// A completion as a result, so that `?` works on it.
pub trait Completed: Sized {
    /// The completion, if its WR succeeded.
    ///
    /// # Errors
    /// [`Error::Completion`] if it did not.
    fn succeeded(self) -> Result<Wc, Error>;
}

impl Completed for Wc {
    fn succeeded(self) -> Result<Wc, Error> {
        match self.status {
            WcStatus::Success => Ok(self),
            _ => Err(Error::Completion { wc: self }),
        }
    }
}

fn queue_full(capacity: u32, unsignalled: u32, receives: bool) -> String {
    if receives {
        return format!(
            "the VQP's receive queue holds its {capacity} WRs already; take completions, or create \
             the VQP with a larger `max_recv_wr`"
        );
    }
    let full = format!("the VQP's send queue holds its {capacity} WRs already");
    if unsignalled == capacity {
        return format!(
            "{full}, all of them unsignalled, so that no completion will ever free it: connect it \
             anew, and from then on signal one in {}",
            capacity.div_ceil(2).max(1)
        );
    }
    format!(
        "{full}; take completions first. Unsignalled WRs leave it with the next signalled one: \
         signal one in {} at least, or create the VQP with a larger `max_send_wr`",
        capacity.div_ceil(2).max(1)
    )
}

fn not_connected(state: VqpState) -> &'static str {
    match state {
        VqpState::Idle => "not connected; connect it first (Vqp::qconnect)",
        VqpState::Connecting => "still connecting; wait for that (Connecting::wait)",
        VqpState::Connected => "connected",
        VqpState::Error => {
            "in its error state: its first failed completion, or Vqp::failure, says why; \
             connect it anew (Vqp::qconnect)"
        }
    }
}

/// What helps against a refusal of the verbs.
fn remedy(error: &PostError) -> &'static str {
    match error {
        PostError::TooManySges { .. } => "; use fewer, or several WRs (Limits::max_sge)",
        PostError::InlineTooLong { max: 0, .. } => {
            "; a READ or an atomic answers into memory, and a SEND that is confirmed is read from it: \
             give it SGEs of an Mr"
        }
        PostError::InlineTooLong { .. } => "; give it SGEs of an Mr (Limits::max_inline)",
        PostError::MessageTooLong { .. } => "; cut it into several WRs (Limits::message_bytes)",
        PostError::AtomicLength { .. } => {
            "; give it one SGE of 8 bytes, into which the old value goes"
        }
        PostError::AtomicAlignment { .. } => "; name a word whose address is a multiple of 8",
        PostError::LocalAccess { .. } => {
            "; SGEs lie in an Mr of this session's (Mr::sge), which has LOCAL_WRITE where the WR writes to it"
        }
        PostError::Destination { .. } | PostError::Ah { .. } | PostError::Qpn { .. } => {
            "; a VQP goes where it was connected to (Vqp::qconnect): leave `dest` out"
        }
        PostError::QueueFull { .. } => "; take completions first (Vqp::poll_cq)",
        PostError::State { .. } | PostError::UsesSrq => "; connect the VQP anew (Vqp::qconnect)",
        PostError::Opcode { .. } => "; a VQP does SEND, WRITE, READ, CMP_SWAP and FETCH_ADD",
        PostError::InvalidHandle { .. } => "; the VQP was destroyed: create another one",
    }
}

/// What a status says of a VQP, and what helps.
fn advice(wc: &Wc) -> &'static str {
    match AccessFault::of(wc) {
        Some(AccessFault::Key) => {
            return "the peer has no region with that rkey: it never had, or has deregistered it";
        }
        Some(AccessFault::Range) => return "the range does not lie in the peer's region",
        Some(AccessFault::Right) => {
            return "the peer's region does not grant that right: register it with REMOTE_READ, \
                    REMOTE_WRITE or REMOTE_ATOMIC";
        }
        Some(AccessFault::Region) => return "the peer has deregistered the region meanwhile",
        Some(AccessFault::Distrusted) => {
            return "the peer was not asked for the region, since too many rkeys of this user's \
                    processes were wrong (mr_keys_wrong); stop using wrong ones, and it is asked \
                    again within seconds";
        }
        None => {}
    }
    match wc.status {
        WcStatus::Success => "nothing is wrong",
        WcStatus::LocLenErr => "a message was longer than the receive, or an SGE too long",
        WcStatus::LocProtErr => {
            "an SGE does not lie in an Mr of this session's, or the Mr lacks LOCAL_WRITE"
        }
        WcStatus::LocQpOpErr => "the node refused the WR's shape, or a quota is reached",
        WcStatus::WrFlushErr => {
            "an earlier WR of the VQP failed, or the VQP was not connected; the first failed \
             completion says why"
        }
        WcStatus::RemAccessErr => {
            "the peer refused the access: check the rkey, that the range lies in the region, the \
             region's rights, and that it is still registered"
        }
        WcStatus::RemInvReqErr | WcStatus::RemOpErr => "the peer could not do it",
        WcStatus::RetryExcErr => "the peer does not answer: its node is gone, or cannot be reached",
        WcStatus::RnrRetryExcErr => "the peer had no receive posted for too long",
        _ => "connect the VQP anew (Vqp::qconnect)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user had a queue full of unsignalled WRs, and was told to poll a CQ in which nothing could
    /// ever be.
    #[test]
    fn a_full_queue_names_what_frees_it() {
        let text = |unsignalled, receives| {
            Error::QueueFull { capacity: 128, unsignalled, receives }.to_string()
        };
        assert!(text(3, false).contains("signal one in 64"), "{}", text(3, false));
        assert!(text(128, false).contains("no completion will ever free it"));
        assert!(text(0, true).contains("max_recv_wr"));
    }

    /// Every refusal says what helps, also one that only a program could cause that goes around the library.
    #[test]
    fn each_refusal_of_a_wr_says_what_to_do() {
        let qp_type = elver_verbs::QpType::Rc;
        let (given, max) = (9, 8);
        let all = [
            PostError::InvalidHandle { kind: elver_verbs::ObjectKind::Qp, handle: 1 },
            PostError::QueueFull { capacity: 8 },
            PostError::State { qp_type, state: elver_verbs::QpState::Err },
            PostError::Opcode { qp_type, opcode: SendOpcode::LocalInv },
            PostError::TooManySges { given, max },
            PostError::InlineTooLong { given, max },
            PostError::InlineTooLong { given, max: 0 },
            PostError::MessageTooLong { given: 9, max: 8 },
            PostError::AtomicLength { given: 9 },
            PostError::Destination { qp_type },
            PostError::Ah { handle: 1 },
            PostError::Qpn { qpn: 1 << 24 },
            PostError::UsesSrq,
            PostError::LocalAccess { addr: 1, length: 2, lkey: 3 },
            PostError::AtomicAlignment { addr: 1 },
        ];
        for refused in all {
            let text = Error::from(refused).to_string();
            assert!(text.split_once("; ").is_some_and(|(_, help)| help.len() > 10), "{text}");
        }
    }

    /// Whatever fails on the way to a first READ comes by a question mark.
    #[test]
    fn a_text_that_names_no_node_is_an_error_like_others() {
        fn gid(text: &str) -> Result<elver_verbs::Gid, Error> {
            Ok(text.parse()?)
        }
        assert!(gid("10.0.0.1").is_ok());
        assert!(matches!(gid("nowhere"), Err(Error::Gid(_))));
    }

    #[test]
    fn a_failed_completion_is_an_error_and_another_is_none() {
        let wc = Wc { wr_id: 7, status: WcStatus::RemAccessErr, ..Wc::default() };
        let text = wc.succeeded().unwrap_err().to_string();
        assert!(text.contains("WR 7") && text.contains("rkey"), "{text}");
        assert_eq!(Wc::default().succeeded().unwrap(), Wc::default());
    }

    #[test]
    fn what_was_posted_before_is_told_and_the_reason_comes_by_a_question_mark() {
        fn call(result: Result<(), PostFailed>) -> Result<(), Error> {
            Ok(result?)
        }
        let failed = || PostFailed { posted: 3, error: Error::TimedOut };
        assert!(matches!(call(Err(failed())), Err(Error::TimedOut)));
        assert_eq!(failed().to_string(), Error::TimedOut.to_string());
    }
}
