//! Two nodes in two network namespaces, as in two hosts, joined by a cable (feature `embedded`).
//!
//! `cargo run -p elver --example namespaces --features embedded`; it needs no daemon, `ip` and `unshare`, and either
//! root or a system where users may make namespaces. What it makes goes with its processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use elver::node::Node;
use elver::node::config::Config;
use elver::{
    AccessFlags, Completed, EmbeddedNode, Gid, Payload, RecvWr, SendFlags, SendOp, SendWr, Session,
    SessionOptions, VqpOptions, Wc,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const HERE: [u8; 4] = [10, 77, 0, 1];
const THERE: [u8; 4] = [10, 77, 0, 2];
const META: &str = "10.77.0.1:4790";
const PORT: u16 = 7;
const WAIT: Option<Duration> = Some(Duration::from_secs(30));

fn main() -> Result<()> {
    let role = std::env::args().nth(1);
    match role.as_deref() {
        Some("here") => here(),
        Some("there") => there(),
        // Namespaces are for who begins in them. Of a user namespace anybody is root.
        _ => {
            let is_root = Command::new("id").arg("-u").output()?.stdout == b"0\n";
            let user = if is_root { &[][..] } else { &["--user", "--map-root-user"] };
            let mut first = Command::new("unshare");
            first.args(user).arg("--net").arg(std::env::current_exe()?).arg("here");
            let status = first.status()?;
            std::process::exit(status.code().unwrap_or(1));
        }
    }
}

/// The first host: it keeps the table of nodes too, and waits for a message.
fn here() -> Result<()> {
    let mut other = Command::new("unshare")
        .arg("--net")
        .arg(std::env::current_exe()?)
        .arg("there")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    // It is in its own namespace once it says something.
    let mut said = BufReader::new(other.stdout.take().ok_or("no pipe")?);
    said.read_line(&mut String::new())?;
    let pid = other.id().to_string();
    ip(&["link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", &pid])?;
    plug_in("10.77.0.1/24")?;

    let mut config = Config::default();
    config.node.address = HERE.into();
    config.meta.serve = true;
    config.meta.listen = META.to_string();
    config.metrics.listen = String::new();
    let session = Session::embedded(config)?;
    let bound = session.create_vqp(VqpOptions::default())?;
    bound.qbind(PORT)?;
    let mr = session.alloc(64, AccessFlags::LOCAL_WRITE)?;
    bound.post_recv(&[RecvWr { wr_id: 1, sges: &[mr.sge(0, 64)] }])?;
    other.stdin.take().ok_or("no pipe")?.write_all(b"go on\n")?;

    // This thread drives the node while it waits, and so serves the table meanwhile.
    let messages = bound.wait_msgs(WAIT)?;
    let message = messages.first().ok_or("no message came")?;
    let mut text = vec![0; message.wc.byte_len as usize];
    mr.read(0, &mut text)?;
    println!("the other namespace says {:?}", String::from_utf8_lossy(&text));
    while other.try_wait()?.is_none() {
        session.poll()?;
    }
    if other.wait()?.success() { Ok(()) } else { Err("the other namespace failed".into()) }
}

/// The second host.
fn there() -> Result<()> {
    println!("here I am");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    plug_in("10.77.0.2/24")?;

    let mut config = Config::default();
    config.node.address = THERE.into();
    config.meta.servers = vec![META.to_string()];
    config.metrics.listen = String::new();
    let node = EmbeddedNode::new(Node::embedded(config)?);
    while node.with(Node::status).registered == 0 {
        node.poll();
    }
    let session = node.session(SessionOptions::default())?;
    let vqp = session.create_vqp(VqpOptions::default())?;
    vqp.qconnect(Gid::from(std::net::IpAddr::from(HERE)), PORT)?;
    let payload = Payload::Inline(b"hello");
    let send =
        SendWr { wr_id: 1, op: SendOp::Send, flags: SendFlags::SIGNALED, payload, dest: None };
    vqp.post_send(&[send])?;
    let mut wcs = [Wc::default()];
    vqp.wait_cq(&mut wcs, WAIT)?;
    wcs[0].succeeded()?;
    Ok(())
}

/// Gives this end of the cable an address.
fn plug_in(address: &str) -> Result<()> {
    ip(&["address", "add", address, "dev", "cable"])?;
    ip(&["link", "set", "cable", "up"])?;
    ip(&["link", "set", "lo", "up"])
}

fn ip(arguments: &[&str]) -> Result<()> {
    let status = Command::new("ip").args(arguments).status()?;
    if status.success() { Ok(()) } else { Err(format!("ip {} failed", arguments.join(" ")).into()) }
}
