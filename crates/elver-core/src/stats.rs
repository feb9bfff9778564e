use elver_verbs::Gid;

macro_rules! stats {
    (
        $($(#[$doc:meta])* $name:ident,)*
        ; gauges: $($(#[$gauge_doc:meta])* $gauge:ident,)*
    ) => {
        /// Counters of a core, by name. Each only grows, but for the gauges, which say so.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            $($(#[$gauge_doc])* pub $gauge: u64,)*
        }

        impl Stats {
            /// The names of the gauges.
            pub const GAUGES: &[&str] = &[$(stringify!($gauge),)*];

            /// Every counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [
                    $((stringify!($name), self.$name),)*
                    $((stringify!($gauge), self.$gauge),)*
                ]
                .into_iter()
            }
        }
    };
}

stats! {
    /// `qconnect`s that found an RC QP.
    connects_rc,
    /// `qconnect`s that found the metadata in the DCCache.
    connects_cached,
    /// `qconnect`s that asked a meta server.
    connects_looked_up,
    /// `qconnect`s that failed.
    connects_failed,
    /// `qconnect`s that were refused since too many waited.
    connects_busy,
    /// Look-ups of nodes at meta servers.
    lookups,
    /// READs of these.
    lookup_reads,
    /// Nodes that were asked for their record themselves, by an RPC.
    meta_calls,
    /// Nodes that answered as what they were taken to have been before: what had passed for news of
    /// them was late.
    peers_past_again,
    /// Look-ups that went on at the next meta server.
    lookups_failed_over,
    /// READs that only measured how far a meta server is.
    meta_probes,
    /// Look-ups of regions in peers' ValidMR tables.
    mr_lookups,
    /// READs of these.
    mr_lookup_reads,
    /// Look-ups of regions that were given up, since the peers did not get on with them.
    mr_lookups_late,
    /// Look-ups of regions that the peers do not have.
    mr_keys_wrong,
    /// WRs that failed without one: their account's were wrong too often.
    mr_keys_refused,
    /// WRs refused since the peer's region does not permit them.
    mr_refusals,
    /// WRs that passed that check and were refused by the peer's device: they waited in a send queue
    /// for longer than the peer waits with a deregistration, or it started anew.
    mr_leases_outlived,
    /// Long messages that failed since nothing more may be open to receivers (`memory.max_mrs`).
    messages_unopened,
    /// WRs taken from clients.
    send_wrs,
    /// Bytes of these.
    send_bytes,
    /// Calls that posted them to physical QPs.
    posts,
    /// WRs that a client was refused when it posted them.
    posts_refused,
    /// Receives taken from clients.
    recv_wrs,
    /// Messages taken from the network.
    messages_received,
    /// Messages that waited for a receive.
    messages_held,
    /// Messages whose receive was not at hand, so that they were written by and by.
    messages_landed_late,
    /// Messages that were refused.
    messages_refused,
    /// Times that a sender was told to wait, since a VQP here held much.
    senders_halted,
    /// VQPs here that were told to wait for their receivers.
    halts,
    /// Messages of the core's own that did not get to the peer.
    messages_lost,
    /// Messages that were none.
    messages_malformed,
    /// Messages to a VQP that is not connected to their sender.
    messages_strayed,
    /// What peers told of messages of VQPs that are gone, or connected to others by now.
    notes_strayed,
    /// VQPs made for senders.
    accepts,
    /// Of these, the ones that gave way to others before they were used.
    accepted_evicted,
    /// Times that none was made: the receiver or the node, or its share for the sender's node, was
    /// full.
    accepts_refused,
    /// Completions given to clients.
    completions,
    /// Completions that no WR was known for: 0 unless the core is at fault.
    completions_unknown,
    /// WRs that the device refused although the core had checked them: 0 unless it is at fault.
    device_refusals,
    /// Queues of the device's that failed: 0 unless the core or the device is at fault.
    device_faults,
    /// VQPs that went to their error state.
    vqp_errors,
    /// Times that a peer which was silent was asked whether it is there.
    peers_asked,
    /// Answers to that.
    peers_answered,
    /// Times that this node was asked so, and answered.
    peers_assured,
    /// Peers that were given up since they did not answer.
    peers_given_up,
    /// VQPs that failed since their peer's node, or the owner of its port, has gone.
    vqps_forsaken,
    /// RC QPs that peers were asked for.
    links_asked,
    /// RC QPs that were connected, at either side's request.
    links_made,
    /// RC QPs that peers were asked for in vain.
    links_failed,
    /// RC QPs that were closed to make room for others.
    links_reclaimed,
    /// VQPs that moved to an RC QP, from DC or from another one.
    transfers_to_rc,
    /// VQPs that moved from an RC QP to DC.
    transfers_to_dc,
    /// Control requests and answers sent again.
    control_resent,
    /// Control requests of others that were turned away for now.
    control_busy,
    /// Control datagrams that meant nothing.
    control_stray,
    /// Control requests from where no node was known to send any: their senders were looked up.
    control_strangers,
    /// Of these, the ones that were not answered: no meta server knows their sender, or there were
    /// too many.
    control_denied,
    /// Times that a VQP of the low class had to wait since the high class was loaded.
    low_held,
    /// Lanes that failed and were set going again.
    lanes_reset,
    /// WRs that were ended since operations of the core's own waited behind them, or were them, for a peer that was there
    /// and never ready.
    lanes_stalled,
    /// Times that the device neither set a failed DCI going again nor made another: 0 unless the
    /// device is at fault.
    dci_restarts_refused,
    /// DCIs that were made anew, since the device did not set the old ones going again.
    dcis_remade,
    /// WRs of others on such a lane that were posted again: of none of them can it be that it was
    /// executed before, but for READs.
    wrs_reposted,
    /// Peers that were asked how far the other end of an RC QP that broke had got.
    fates_asked,
    /// Of these, the ones that did not know, or did not answer.
    fates_unknown,
    /// Ends that went and whose peers are not told of it any more, since they were too many.
    ends_given_up,
    /// WRs that were flushed and not posted again, since the peer had executed them.
    wrs_executed_unseen,
    /// WRs that ended with an error since they may have been executed, or their results were lost.
    wrs_unsure,
    /// Operations of the core's own that ended since RC QPs had failed at them again and again.
    ops_unsure,
    /// Operations of the core's own that had to wait for an RC QP, since there was no way to their peer.
    ops_waited,
    /// States that nobody can have brought about but the core itself, in all cores of this process: 0 unless
    /// it is at fault.
    bugs,
    ; gauges:
    /// Clients now: a gauge.
    clients,
    /// VQPs now, those going included: a gauge.
    vqps,
    /// Of these, the ones that messages made: a gauge.
    accepted,
    /// Regions now: a gauge.
    mrs,
    /// Peers remembered now: a gauge.
    peers,
    /// RC QPs now, those being made or closed included: a gauge.
    rc_qps,
    /// Ends of RC QPs that have gone here and whose peers have not been heard to know it: a gauge.
    ends_untold,
    /// DCIs now that the device does not set going again: a gauge, and 0 unless the device is at
    /// fault.
    dcis_down,
}

/// A peer node as this one knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its GID.
    pub gid: Gid,
    /// VQPs connected to it.
    pub vqps: u32,
    /// RC QPs to it that are connected.
    pub rc_qps: u32,
    /// Operations posted to it so far.
    pub ops: u64,
    /// Bytes of these.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_its_name() {
        let stats = Stats { lookups: 3, peers: 9, ..Stats::default() };
        let found: Vec<_> = stats.iter().filter(|(_, value)| *value > 0).collect();
        assert_eq!(found, [("lookups", 3), ("peers", 9)]);
        assert!(Stats::GAUGES.contains(&"peers") && !Stats::GAUGES.contains(&"lookups"));
    }
    use alloc::vec::Vec;
}
