macro_rules! frame_counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// What a frame link has done and seen. Counters only grow, and wrap.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct FrameCounters {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl FrameCounters {
            /// Every counter by name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

frame_counters! {
    /// Frames received, of any kind.
    frame_rx,
    /// Frames sent, of any kind.
    frame_tx,
    /// ARP requests and neighbour solicitations sent.
    frame_neighbour_asked,
    /// ARP requests and neighbour solicitations answered.
    frame_neighbour_answered,
    /// Neighbours given up because nothing answered.
    frame_neighbour_failed,
    /// Neighbours forgotten to make room for others.
    frame_neighbour_evicted,
    /// Another station said that one of our addresses is its own.
    frame_address_conflict,
    /// Echo requests answered.
    frame_echo_answered,
    /// The other end closed the link.
    frame_link_closed,
    /// Dropped: shorter than its headers say.
    frame_drop_truncated,
    /// Dropped: longer than the link's MTU allows.
    frame_drop_oversized,
    /// Dropped: not to our MAC address, or not to an IP address of ours.
    frame_drop_not_ours,
    /// Dropped: from a group's address, or from our own.
    frame_drop_source,
    /// Dropped: a protocol that is not spoken here.
    frame_drop_protocol,
    /// Dropped: wrong checksum of IPv4, UDP or ICMP.
    frame_drop_checksum,
    /// Dropped: a fragment, or an IPv4 packet without DF, which RoCEv2 does not have.
    frame_drop_fragment,
    /// Dropped: IPv4 options.
    frame_drop_options,
    /// Dropped: not to the UDP port of RoCEv2.
    frame_drop_port,
    /// Dropped: ARP or neighbour discovery that makes no sense.
    frame_drop_neighbour,
    /// Dropped, outbound: no network or gateway leads to the destination.
    frame_drop_no_route,
    /// Dropped, outbound: the neighbour did not tell its MAC address in time.
    frame_drop_unresolved,
    /// Dropped, outbound: a queue was full.
    frame_drop_queue,
    /// Dropped, outbound: the socket refused it.
    frame_drop_refused,
}

/// Why a received frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameDrop {
    Truncated,
    Oversized,
    NotOurs,
    Source,
    Protocol,
    Checksum,
    Fragment,
    Options,
    Port,
    Neighbour,
}

impl FrameCounters {
    #[cold]
    pub(crate) fn dropped(&mut self, reason: FrameDrop) {
        let counter = match reason {
            FrameDrop::Truncated => &mut self.frame_drop_truncated,
            FrameDrop::Oversized => &mut self.frame_drop_oversized,
            FrameDrop::NotOurs => &mut self.frame_drop_not_ours,
            FrameDrop::Source => &mut self.frame_drop_source,
            FrameDrop::Protocol => &mut self.frame_drop_protocol,
            FrameDrop::Checksum => &mut self.frame_drop_checksum,
            FrameDrop::Fragment => &mut self.frame_drop_fragment,
            FrameDrop::Options => &mut self.frame_drop_options,
            FrameDrop::Port => &mut self.frame_drop_port,
            FrameDrop::Neighbour => &mut self.frame_drop_neighbour,
        };
        *counter += 1;
    }
}
