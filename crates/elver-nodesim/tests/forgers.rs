//! Runs with somebody who forges packets: nothing of it shows, and it is the checks for that which
//! keep it so, each of which has met what it is for.

use std::collections::BTreeMap;

use elver_nodesim::{Forger, Forgers, Options, run};

/// Seeds with each.
const SEEDS: u64 = 25;

/// What all runs with somebody counted, of cores and devices. A run that fails is a node that believed
/// him.
fn counted(forger: Forger) -> BTreeMap<&'static str, u64> {
    let options = Options { forgers: Forgers::Always(forger), ..Options::default() };
    let mut counted = BTreeMap::new();
    for seed in 0..SEEDS {
        let report = run(seed, &options).unwrap_or_else(|failure| {
            panic!("{failure}\n{}", failure.trace.join("\n"));
        });
        assert_eq!(report.forger, Some(forger));
        for (name, count) in
            report.acts.into_iter().chain(report.counters).chain(report.device_counters)
        {
            *counted.entry(name).or_insert(0) += count;
        }
    }
    counted
}

fn met(forger: Forger, checks: &[&str]) {
    let counted = counted(forger);
    assert!(counted["packet forged"] > 50 * SEEDS, "{forger}: {counted:?}");
    for check in checks {
        let count = counted.get(check).copied().unwrap_or(0);
        assert!(count > 0, "{forger} met no {check}: {counted:?}");
    }
}

#[test]
fn a_host_without_a_secret_gets_nothing_and_leaves_nothing() {
    let checks = [
        "drop_qkey",
        "drop_source",
        "drop_source_port",
        "drop_qpn",
        "drop_icrc",
        "drop_dc_session",
        "dc_refused_key",
        "dc_proofs_asked",
    ];
    met(Forger::Stranger, &checks);
}

#[test]
fn a_process_of_another_user_on_a_nodes_host_gets_nothing_from_other_ports() {
    met(Forger::Process, &["drop_source_port"]);
}

#[test]
fn a_member_gone_bad_speaks_in_its_own_name_alone() {
    let checks = [
        "control_denied",
        "control_strangers",
        "dc_proofs_asked",
        "message of a member gone bad",
        "messages_malformed",
        "messages_strayed",
        "nak_fatal_sent",
    ];
    met(Forger::Member, &checks);
}

#[test]
fn who_is_on_the_path_loses_connections_and_has_nothing_done_twice() {
    met(Forger::OnPath, &["rx_duplicate", "drop_dc_session", "cnp_received", "control_stray"]);
}

/// He agreed to each RC QP that he was asked for and answered nothing over it, and nodes without DC
/// asked him for the next one for ever.
#[test]
fn a_member_gone_bad_is_not_asked_for_rc_qps_for_ever() {
    let options = Options { forgers: Forgers::Always(Forger::Member), ..Options::default() };
    for seed in [52_000_177, 52_000_271] {
        if let Err(failure) = run(seed, &options) {
            panic!("{failure}\n{}", failure.trace.join("\n"));
        }
    }
}

/// Messages of his have taken the room of a port at which all else was at peace.
#[test]
fn a_member_s_messages_take_room_of_which_senders_are_told() {
    passes(2_004_172_874);
}

/// And one took a receive: its pieces were not as long as it was.
#[test]
fn a_member_s_message_that_cannot_be_takes_a_receive_and_is_told() {
    passes(2_004_195_990);
}

fn passes(seed: u64) {
    if let Err(failure) = run(seed, &Options::default()) {
        panic!("{failure}\n{}", failure.trace.join("\n"));
    }
}

/// So that all others find what they found before, whatever is added to the forgers.
#[test]
fn who_forges_changes_no_run_without_him() {
    let with = |forgers, seed| run(seed, &Options { forgers, ..Options::default() }).unwrap();
    let drawn = |seed: &u64| with(Forgers::Drawn, *seed).forger.is_none();
    for seed in (0..12).filter(drawn) {
        assert_eq!(with(Forgers::Drawn, seed), with(Forgers::None, seed));
    }
}
