use elver_verbs::{RemoteAddr, SendOp};

/// One iteration of a path.
pub(crate) type Step = Box<dyn FnMut()>;

/// What a WR does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
    Send,
}

impl Operation {
    pub(crate) fn towards(self, remote: RemoteAddr) -> SendOp {
        match self {
            Operation::Read => SendOp::Read(remote),
            Operation::Write => SendOp::Write(remote),
            Operation::Send => SendOp::Send,
        }
    }
}
