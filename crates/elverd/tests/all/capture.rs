//! What a running node sends and receives, recorded for its user: whole, named, and at nobody's cost.
//! tshark reads it, with the script in contrib/.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::daemon::{Daemon, Directory, Witness};
use crate::common::{Client, gid, wait_for};
use elver_node::capture::{CaptureOptions, CaptureStream};
use elver_node::config::capture_path;
use elver_verbs::{RemoteAddr, Sge, WcStatus};

/// Bytes of a READ that many packets answer.
const BULK: u32 = 1 << 20;

/// Two daemons that know each other.
struct Pair {
    directory: Directory,
    meta: Daemon,
    node: Daemon,
}

impl Pair {
    fn new() -> Pair {
        let directory = Directory::new();
        let meta = Daemon::start(&directory, "meta", "serve = true");
        let servers = format!("servers = [\"{}\"]", meta.registry.unwrap());
        let node = Daemon::start(&directory, "node", &servers);
        meta.registered(1);
        node.registered(1);
        Pair { directory, meta, node }
    }

    fn record(&self, options: CaptureOptions) -> CaptureStream {
        CaptureStream::open(&self.node.socket, &options).unwrap()
    }

    /// What tshark shows of a capture: these fields of each packet.
    fn shown(&self, capture: &[u8], names: &[&str]) -> Vec<Vec<String>> {
        let file = self.directory.path.join("node.pcapng");
        std::fs::write(&file, capture).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/wireshark/elver.lua");
        let mut command = Command::new("tshark");
        command.arg("-r").arg(&file).args(["-n", "-T", "fields", "-E", "separator=/t"]);
        command.arg("-X").arg(format!("lua_script:{script}"));
        for name in names {
            command.args(["-e", name]);
        }
        let output = command.output().expect("this test needs tshark: apt-get install tshark");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !complaint.contains("Lua"), "{complaint}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| line.split('\t').map(str::to_string).collect()).collect()
    }
}

/// Everything of a capture that is ended.
fn all(mut stream: CaptureStream) -> Vec<u8> {
    stream.finish().unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Packets, and those that are missing, as the statistics block at the end says.
fn statistics(capture: &[u8]) -> (u64, u64) {
    let len = u32::from_le_bytes(*capture.last_chunk().unwrap()) as usize;
    let block = &capture[capture.len() - len..];
    assert_eq!(block[..4], 5u32.to_le_bytes(), "it ends with its statistics");
    // Two options of 8 bytes, behind 20 bytes and a head of 4 each.
    let number = |at: usize| u64::from_le_bytes(*block[at..].first_chunk().unwrap());
    (number(24), number(36))
}

#[test]
fn a_capture_shows_packets_both_ways_and_names_their_vqps() {
    let pair = Pair::new();
    let stream = pair.record(CaptureOptions::default());
    let mut there = Client::connect(&pair.meta.socket).unwrap();
    let (region, bound) = (there.alloc(4_096).unwrap(), there.create());
    let port = there.qbind(bound, 0).unwrap();
    there.receive(bound, Sge { addr: region.addr, length: 4_096, lkey: region.lkey });
    let mut here = Client::connect(&pair.node.socket).unwrap();
    let vqp = here.create();
    here.qconnect(vqp, gid(&pair.meta.address), port).unwrap();
    here.send(vqp, b"hello");
    assert_eq!(here.completion().status, WcStatus::Success);
    assert_eq!(there.completion().status, WcStatus::Success);
    let capture = all(stream);
    let (packets, lost) = statistics(&capture);
    let fields = ["frame.comment", "frame.packet_flags_direction", "elver.message.src_vqp"];
    let rows = pair.shown(&capture, &fields);
    assert_eq!((rows.len() as u64, lost), (packets, 0));
    let name = format!("VQP {vqp:#x} (pid {}, to port {port})", std::process::id());
    let own: Vec<_> = rows.iter().filter(|row| row[0] == name).collect();
    for direction in ["0x00000002", "0x00000001"] {
        assert!(own.iter().any(|row| row[1].ends_with(&direction[8..])), "{direction}: {rows:?}");
    }
    let sender = format!("{vqp:#010x}");
    assert!(own.iter().any(|row| row[2] == sender), "{sender} in {rows:?}");
}

#[test]
fn it_is_for_the_nodes_user_alone() {
    let pair = Pair::new();
    let path = capture_path(&pair.node.socket);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    if rustix::process::geteuid().is_root() {
        // Not even where the file would let others in.
        for mode in [0o600, 0o666] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let socket = pair.node.socket.clone();
            let other = std::thread::spawn(move || {
                // Of this thread alone.
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).unwrap();
                CaptureStream::open(&socket, &CaptureOptions::default()).unwrap_err().to_string()
            });
            let refused = other.join().unwrap();
            assert!(refused.contains("only the node's own user"), "{mode:o}: {refused}");
        }
    }
    // And there is one at a time.
    let first = pair.record(CaptureOptions::default());
    let second = CaptureStream::open(&pair.node.socket, &CaptureOptions::default());
    assert!(second.unwrap_err().to_string().contains("recorded already"));
    // The next one is let in at once, however the one before ended.
    let mut before = first;
    for round in 0..40 {
        if round % 2 == 0 {
            all(before);
        } else {
            drop(before);
        }
        before = pair.record(CaptureOptions::default());
    }
}

/// A reader that takes nothing once made whoever writes wait for him; here it is the packets that do
/// not wait.
#[test]
fn who_does_not_read_stops_nobody_and_hears_what_he_missed() {
    let pair = Pair::new();
    let stream = pair.record(CaptureOptions { buffer_bytes: 0, ..CaptureOptions::default() });
    let mut there = Client::connect(&pair.meta.socket).unwrap();
    let far = there.alloc(BULK.into()).unwrap();
    let mut here = Client::connect(&pair.node.socket).unwrap();
    let (near, vqp) = (here.alloc(BULK.into()).unwrap(), here.create());
    here.qconnect(vqp, gid(&pair.meta.address), 0).unwrap();
    for _ in 0..8 {
        here.read(vqp, &near, 0, BULK, RemoteAddr { addr: far.addr, rkey: far.rkey });
        assert_eq!(here.completion().status, WcStatus::Success);
    }
    let capture = all(stream);
    let (packets, lost) = statistics(&capture);
    // A packet carries at most 4,096 bytes.
    assert!(packets >= u64::from(8 * BULK / 4_096), "{packets}");
    let rows = pair.shown(&capture, &["frame.number"]);
    assert_eq!(rows.len() as u64 + lost, packets);
    assert!(lost > 0, "what nobody reads does not fit");
    Witness::new(&pair.node).works();
}

#[test]
fn only_so_much_of_each_packet_is_kept() {
    let pair = Pair::new();
    let stream = pair.record(CaptureOptions { snap_bytes: 64, ..CaptureOptions::default() });
    let there = Witness::new(&pair.meta);
    let mut here = Witness::new(&pair.node);
    here.client.qconnect(here.vqp, gid(&pair.meta.address), 0).unwrap();
    here.client.read(here.vqp, &here.region, 0, 64, there.remote());
    assert_eq!(here.client.completion().status, WcStatus::Success);
    let rows = pair.shown(&all(stream), &["frame.cap_len", "frame.len"]);
    let number = |text: &String| text.parse::<u32>().unwrap();
    assert!(rows.iter().all(|row| number(&row[0]) == number(&row[1]).min(64)), "{rows:?}");
    assert!(rows.iter().any(|row| number(&row[1]) > 64), "{rows:?}");
}

#[test]
fn it_ends_with_the_node_and_what_makes_no_sense_is_refused() {
    let mut pair = Pair::new();
    let wrong = CaptureOptions { buffer_bytes: u32::MAX, ..CaptureOptions::default() };
    let refused = CaptureStream::open(&pair.node.socket, &wrong).unwrap_err();
    assert!(refused.to_string().contains("buffer_bytes"), "{refused}");
    let mut stream = wait_for("a capture", || {
        CaptureStream::open(&pair.node.socket, &CaptureOptions::default()).ok()
    });
    pair.node.signal(rustix::process::Signal::TERM);
    stream.read_to_end(&mut Vec::new()).unwrap();
    assert!(!capture_path(&pair.node.socket).exists());
    let none = CaptureStream::open(&pair.node.socket, &CaptureOptions::default()).unwrap_err();
    assert!(none.to_string().contains("start `elverd`"), "{none}");
}
