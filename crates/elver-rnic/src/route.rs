use core::net::SocketAddr;

use elver_verbs::{AddressVector, ObjectKind, VerbsError};
use elver_wire::Flow;

use crate::config::Config;
use crate::flow::{PathId, Paths};

/// IP hop limit where the address vector gives none.
const HOP_LIMIT_DEFAULT: u8 = 64;
/// ECT(0): the packet may be marked instead of dropped (RFC 3168).
const ECN_CAPABLE: u8 = 0b10;

/// What an address vector is to name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whither {
    /// A host.
    Host,
    /// A multicast group: of datagrams alone.
    Group,
}

/// Where packets go, resolved from an address vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) flow: Flow,
    pub(crate) path: PathId,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// The address is one of ours and MR to MR copies are on.
    pub(crate) local: bool,
}

impl Route {
    pub(crate) fn resolve(
        config: &Config,
        paths: &mut Paths,
        av: &AddressVector,
        whither: Whither,
    ) -> Result<Route, VerbsError> {
        let source =
            *config.addresses.get(usize::from(av.sgid_index)).ok_or(VerbsError::InvalidHandle {
                kind: ObjectKind::Gid,
                handle: u32::from(av.sgid_index),
            })?;
        let target = av.dgid.to_ip();
        if source.is_ipv4() != target.is_ipv4() {
            return Err(VerbsError::InvalidArgument {
                what: "dgid and the GID at sgid_index must be of one IP version",
            });
        }
        if target.is_unspecified() || target.is_multicast() != (whither == Whither::Group) {
            return Err(VerbsError::InvalidArgument {
                what: match whither {
                    Whither::Host => "dgid must be the address of one host",
                    Whither::Group => "dgid must be the address of a multicast group",
                },
            });
        }
        if av.flow_label >= 1 << 20 {
            return Err(VerbsError::OutOfRange {
                name: "flow_label",
                value: u64::from(av.flow_label),
                min: 0,
                max: (1 << 20) - 1,
            });
        }
        Ok(Route {
            flow: Flow {
                src: SocketAddr::new(source, config.udp_port),
                dst: SocketAddr::new(target, config.udp_port),
            },
            path: paths.open(target)?,
            traffic_class: av.traffic_class & !0b11 | ECN_CAPABLE,
            hop_limit: if av.hop_limit == 0 { HOP_LIMIT_DEFAULT } else { av.hop_limit },
            local: config.local_copy && config.addresses.contains(&target),
        })
    }
}
