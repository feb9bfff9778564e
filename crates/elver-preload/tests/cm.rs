//! What rdma_cm tells a program of its ids, and when, over the genuine librdmacm: `cm/cm.c`, each case of which is both ends
//! of its connections.

mod common;
#[path = "common/namespaces.rs"]
mod namespaces;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use common::{command, library, succeeded};
use namespaces::Namespaces;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cm/cm.c");
        let program = library().join("cm");
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Werror", "-o"]).arg(&program).arg(&source);
        let compiled = compiler.args(["-lrdmacm", "-libverbs", "-lpthread"]).output().unwrap();
        succeeded("cc", &compiled);
        program
    })
}

fn run(case: &str) {
    run_at(&[], case);
}

/// The same behind words that say where.
fn run_at(place: &[&str], case: &str) {
    went_well(case, &command_at(place, case).output().unwrap());
}

fn command_at(place: &[&str], case: &str) -> Command {
    let preload = format!("LD_PRELOAD={}", library().join("libibverbs.so.1").display());
    command(&[place, &["env", &preload, program().to_str().unwrap(), case]].concat())
}

fn went_well(case: &str, output: &Output) {
    let said = succeeded(case, output);
    assert!(said.ends_with(" checks, 0 failures\n"), "{said}");
}

#[test]
fn what_was_taken_outlives_its_listener() {
    run("taken");
}

#[test]
fn a_backlog_counts_what_was_not_taken() {
    run("backlog");
}

#[test]
fn an_id_goes_to_another_channel_with_what_was_told_of_it() {
    run("migrates");
}

#[test]
fn a_request_goes_to_another_channel_with_its_listener() {
    run("follows");
}

#[test]
fn only_what_was_connected_is_over() {
    run("over");
}

#[test]
fn who_takes_a_channels_descriptor_is_no_channel() {
    run("replaces");
}

#[test]
fn who_waits_for_an_event_of_a_channel_that_is_closed_sleeps_on() {
    run("closes");
}

#[test]
fn a_signal_ends_the_wait_of_who_sleeps_on_when_its_channel_is_closed() {
    run("interrupted");
}

#[test]
fn a_channel_that_becomes_another_file_while_it_is_asked_is_not_waited_at() {
    run("becomes");
}

#[test]
fn a_child_of_vfork_closes_its_own_descriptors() {
    run("vforks");
}

#[test]
fn a_port_that_is_shared_has_one_listener() {
    run("reuse");
}

#[test]
fn a_port_of_all_addresses_is_nobody_elses_at_any() {
    run("everywhere");
}

#[test]
fn a_port_is_had_by_families_apart() {
    run("families");
}

#[test]
fn loopback_is_no_address_of_a_device_that_an_interface_has() {
    let namespaces = Namespaces::new("cm", 26);
    run_at(&namespaces.at(0).each_ref().map(String::as_str), "loopback");
}

#[test]
fn an_address_of_ipv4_is_the_same_where_it_is_written_as_one_of_ipv6() {
    let namespaces = Namespaces::new("versions", 29);
    let [here, there] = [0, 1].map(|end| namespaces.at(end));
    let [here, there] = [&here, &there].map(|at| at.each_ref().map(String::as_str));
    let address = namespaces.address(1);
    let own = format!("OWN=::ffff:{address}");
    let mut hears = command_at(&[&there[..], &[&own]].concat(), "hears").spawn().unwrap();
    let mut listens = [0; b"listens\n".len()];
    hears.stdout.as_mut().unwrap().read_exact(&mut listens).unwrap();
    let asks = [format!("THERE={address}"), format!("THERE_AS_V6=::ffff:{address}")];
    run_at(&[&here[..], &asks.each_ref().map(String::as_str)].concat(), "versions");
    went_well("hears", &hears.wait_with_output().unwrap());
}

#[test]
fn a_child_of_fork_holds_no_port() {
    run("forks");
    run("forks-beside");
}

#[test]
fn clients_cost_no_descriptors() {
    run("many");
}

#[test]
fn each_address_has_a_listener() {
    run("addresses");
}

#[test]
fn who_asks_for_an_address_of_loopback_is_at_its_first_one() {
    run("sources");
}

#[test]
fn who_asks_for_a_further_address_of_an_interface_is_at_its_first_one() {
    let namespaces = Namespaces::new("further", 28);
    let at = namespaces.at(0);
    let at = at.each_ref().map(String::as_str);
    let adds = ["ip", "addr", "add", "10.77.28.9/24", "dev", "pl0"];
    succeeded("ip", &command(&[&at[..], &adds].concat()).output().unwrap());
    let first = format!("FIRST={}", namespaces.address(0));
    run_at(&[&at[..], &[&first, "SECOND=10.77.28.9"]].concat(), "further");
}

#[test]
fn what_an_id_is_not_ready_for_is_refused() {
    run("steps");
}

#[test]
fn who_cannot_be_accepted_with_too_much_private_data_is_refused() {
    run("private");
}

#[test]
fn what_a_process_said_before_it_was_killed_is_heard_before_that_it_has_ended() {
    run("dying");
}
