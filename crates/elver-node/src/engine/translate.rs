//! The portal's words for the core's, and back.

use std::io;

use elver_core::{ConnectError, CoreError, Shortage};
use elver_portal::{Refusal, RefusalCode};
use elver_soft::MapError;
use elver_verbs::{PostError, WcStatus};

/// Why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) code: RefusalCode,
    pub(super) text: String,
}

impl Refused {
    pub(super) fn new(code: RefusalCode, text: impl Into<String>) -> Refused {
        Refused { code, text: text.into() }
    }

    /// Why a session gets nothing more.
    pub(super) fn parted() -> Refused {
        Refused::new(RefusalCode::State, "the session has said goodbye already")
    }

    pub(super) fn as_refusal(&self) -> Refusal<'_> {
        Refusal { code: self.code, text: &self.text }
    }
}

impl From<CoreError> for Refused {
    fn from(mut error: CoreError) -> Refused {
        if let CoreError::Limit { setting, .. } = &mut error {
            *setting = option(setting);
        }
        let code = match &error {
            CoreError::NoSuchClient(_) | CoreError::State { .. } => RefusalCode::State,
            CoreError::NoSuchVqp(_) => RefusalCode::NoSuchVqp,
            CoreError::NoSuchMr { .. } => RefusalCode::NoSuchMr,
            CoreError::Limit { .. } => RefusalCode::Limit,
            CoreError::PortInUse { .. } => RefusalCode::PortInUse,
            CoreError::OutOfRange { .. } => RefusalCode::OutOfRange,
            CoreError::Device(_) => RefusalCode::Device,
        };
        Refused::new(code, error.to_string())
    }
}

/// What the configuration calls a setting of the core.
fn option(setting: &'static str) -> &'static str {
    match setting {
        "vqps" => "quota.session_vqps",
        "mrs" => "quota.session_mrs",
        "max_vqps" => "pool.max_vqps",
        "max_mrs" => "memory.max_mrs",
        "max_peers" => "pool.max_peers",
        setting => setting,
    }
}

impl From<ConnectError> for Refused {
    fn from(error: ConnectError) -> Refused {
        let code = match &error {
            ConnectError::NoSuchNode { .. } => RefusalCode::NoSuchNode,
            ConnectError::NoMetaServer { .. } => RefusalCode::NoMetaServer,
            ConnectError::Unreachable { .. } | ConnectError::Silent { .. } => {
                RefusalCode::Unreachable
            }
            ConnectError::NoSuchPort { .. } => RefusalCode::NoSuchPort,
            ConnectError::Overrun { .. } | ConnectError::ReceiveUnfit { .. } => {
                RefusalCode::Overrun
            }
            ConnectError::PeerGone { .. } => RefusalCode::PeerGone,
            ConnectError::NoRcQp { .. } | ConnectError::Crowded { .. } => RefusalCode::Limit,
            ConnectError::Busy { .. } => RefusalCode::Busy,
            ConnectError::Cancelled => RefusalCode::Cancelled,
        };
        Refused::new(code, error.to_string())
    }
}

impl From<MapError> for Refused {
    fn from(error: MapError) -> Refused {
        let code = match &error {
            MapError::Process { reason, .. } => match reason.kind() {
                io::ErrorKind::PermissionDenied => RefusalCode::Permission,
                _ => RefusalCode::OutOfRange,
            },
            _ => RefusalCode::NoMemory,
        };
        Refused::new(code, error.to_string())
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        let code = match error.kind() {
            io::ErrorKind::PermissionDenied => RefusalCode::Permission,
            io::ErrorKind::InvalidInput => RefusalCode::OutOfRange,
            _ => RefusalCode::NoMemory,
        };
        Refused::new(code, error.to_string())
    }
}

/// Whether a connect failed since there was no room for another leased queue pair.
pub(super) fn is_out_of_leases(error: &ConnectError) -> bool {
    matches!(error, ConnectError::NoRcQp { of: Shortage::Leased, .. })
}

/// Whether a connect failed since its peer makes no more queue pairs for this node.
pub(super) fn is_more_than_share(error: &ConnectError) -> bool {
    matches!(error, ConnectError::NoRcQp { of: Shortage::Share, .. })
}

pub(super) fn vqp_init(
    options: elver_portal::VqpOptions,
    class: elver_core::Class,
) -> elver_core::VqpInit {
    elver_core::VqpInit {
        class,
        max_send_wr: options.max_send_wr,
        max_recv_wr: options.max_recv_wr,
        sq_sig_all: options.sq_sig_all,
        confirm_sends: options.confirm_sends,
    }
}

pub(super) fn vqp_info(info: &elver_core::VqpInfo) -> elver_portal::VqpInfo {
    elver_portal::VqpInfo {
        state: info.state,
        class: info.class,
        via: info.via,
        bound: info.bound,
        peer: info.peer,
        outstanding: info.outstanding,
        transfers: info.transfers,
    }
}

#[inline]
pub(super) fn completion(completion: &elver_core::Completion) -> elver_portal::Completion {
    elver_portal::Completion {
        vqp: completion.vqp.0,
        source: completion.source.map(|vqp| vqp.0),
        wc: completion.wc,
    }
}

/// How a WR ends that was refused when it was posted: over a portal only a completion can tell it.
pub(super) fn refused_status(error: &PostError) -> WcStatus {
    match error {
        PostError::LocalAccess { .. } => WcStatus::LocProtErr,
        PostError::MessageTooLong { .. } | PostError::AtomicLength { .. } => WcStatus::LocLenErr,
        PostError::State { .. } => WcStatus::WrFlushErr,
        _ => WcStatus::LocQpOpErr,
    }
}
