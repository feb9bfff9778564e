use elver_wire::ParseError;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// What a device has done and seen since it was made. Counters only grow, and wrap.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            /// Every counter by name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

counters! {
    /// Packets handed out to be sent.
    tx_packets,
    /// Their bytes, from the BTH to the ICRC.
    tx_bytes,
    /// Packets taken in whole.
    rx_packets,
    /// Their bytes, from the BTH to the ICRC.
    rx_bytes,
    /// Messages that completed by a copy from MR to MR.
    local_copies,
    /// READs that who posted them executed himself ([`crate::Rnic::check_direct`]).
    direct_reads,
    /// WRITEs, likewise.
    direct_writes,
    /// Bytes of both.
    direct_bytes,
    /// READs and WRITEs that he could not execute, and posted.
    direct_refused,
    /// Processes of this host that could not be reached that way, and that packets go to.
    direct_peers_refused,
    /// Request packets sent again.
    retransmits,
    /// ACK timeouts.
    timeouts,
    /// Tail probes.
    tail_probes,
    /// NAKs for a sequence error received.
    nak_sequence,
    /// NAKs for a fault of the request received.
    nak_fatal,
    /// RNR NAKs received.
    rnr_nak,
    /// RNR NAKs sent.
    rnr_nak_sent,
    /// NAKs for a sequence error sent.
    nak_sequence_sent,
    /// NAKs for a fault of the request sent.
    nak_fatal_sent,
    /// Request packets that had been executed before.
    rx_duplicate,
    /// Request packets beyond the expected PSN.
    rx_out_of_order,
    /// Responses that answer nothing outstanding.
    rx_stale_response,
    /// CNPs sent.
    cnp_sent,
    /// CNPs received.
    cnp_received,
    /// Congestion windows cut.
    window_cuts,
    /// What was known of an address gave way to another.
    paths_evicted,
    /// Connections that DCIs opened.
    dc_connects,
    /// Connections that DCTs accepted.
    dc_accepts,
    /// Connections that DCTs refused for a wrong access key.
    dc_refused_key,
    /// Connections that DCTs refused for want of room.
    dc_refused_room,
    /// Contexts of silent initiators that DCTs gave up.
    dc_reclaimed,
    /// Requests that DCTs put off until their initiator proves where he is.
    dc_proofs_asked,
    /// Times that we had to prove where we are, and sent again.
    dc_proofs_given,
    /// Requests to DCTs that were too short for an answer.
    dc_unanswered,
    /// Reconnects after a DCT had given up our context.
    dc_reconnects,
    /// Times that a stream had to wait for memory that was not at hand.
    waits_for_memory,
    /// Asynchronous events that gave way to newer ones.
    async_events_lost,
    /// Dropped: shorter than its headers.
    drop_truncated,
    /// Dropped: longer than a packet can be.
    drop_oversized,
    /// Dropped: transport header version is not 0, or a DC header of an unknown version.
    drop_version,
    /// Dropped: unknown opcode.
    drop_opcode,
    /// Dropped: wrong padding.
    drop_padding,
    /// Dropped: a reserved field of a DC header is not 0.
    drop_reserved,
    /// Dropped: unknown syndrome.
    drop_syndrome,
    /// Dropped: wrong ICRC.
    drop_icrc,
    /// Dropped: unknown P_Key.
    drop_pkey,
    /// Dropped: wrong Q_Key.
    drop_qkey,
    /// Dropped: no such QP, or of another transport.
    drop_qpn,
    /// Dropped: the QP's state takes no packets.
    drop_state,
    /// Dropped: not from the peer that the QP is connected to.
    drop_source,
    /// Dropped: a DC packet, or a datagram to a QP that minds, from another UDP port than ours.
    drop_source_port,
    /// Dropped: from a source that presented too many wrong keys.
    drop_distrusted,
    /// Dropped: UC or UD message without a receive posted.
    drop_no_receive,
    /// Dropped: payload does not fit the message, the path MTU or the receive.
    drop_length,
    /// Dropped: UC or UD packet out of sequence or refused access.
    drop_unreliable,
    /// Dropped: DC packet of an earlier session.
    drop_dc_session,
    /// Dropped: too much came for a stream that waits for memory.
    drop_waiting,
    /// Dropped by the driver: cut short by the socket.
    drop_driver,
}

impl Counters {
    /// Counts a datagram that is no packet.
    #[cold]
    pub(crate) fn count_malformed(&mut self, error: &ParseError) {
        *match error {
            ParseError::Truncated { .. } => &mut self.drop_truncated,
            ParseError::Oversized { .. } => &mut self.drop_oversized,
            ParseError::Version(_) => &mut self.drop_version,
            ParseError::Opcode(_) => &mut self.drop_opcode,
            ParseError::Padding => &mut self.drop_padding,
            ParseError::Reserved => &mut self.drop_reserved,
            ParseError::Syndrome(_) => &mut self.drop_syndrome,
        } += 1;
    }

    /// All datagrams that were no packets or whose ICRC was wrong: what damage on the way, or a
    /// peer that speaks otherwise, leads to.
    pub fn damaged(&self) -> u64 {
        self.drop_icrc
            + self.drop_truncated
            + self.drop_oversized
            + self.drop_version
            + self.drop_opcode
            + self.drop_padding
            + self.drop_reserved
            + self.drop_syndrome
    }
}

/// Why a driver dropped a datagram before the device saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The socket cut it short.
    Driver,
    /// It is longer than a packet can be.
    Oversized,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_the_counter_of_its_reason() {
        let errors = [
            ParseError::Truncated { needed: 16, got: 3 },
            ParseError::Oversized { got: 5000, max: 4096 },
            ParseError::Version(1),
            ParseError::Opcode(0xff),
            ParseError::Padding,
            ParseError::Reserved,
            ParseError::Syndrome(0x40),
        ];
        for error in errors {
            let mut counters = Counters::default();
            counters.count_malformed(&error);
            let counted: alloc::vec::Vec<_> =
                counters.iter().filter(|(_, value)| *value > 0).collect();
            assert_eq!(counted, [(&*alloc::format!("drop_{}", error.reason()), 1)]);
            assert_eq!(counters.damaged(), 1);
        }
    }
}
