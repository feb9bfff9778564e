//! A function in Rust: it READs 8 bytes that its event names, and says what they are.
//!
//! `{"to": GID, "address": A, "rkey": K}`; for its tests also `"crash"`, `"panic"`, `"stray"`, `"inherits"`,
//! `"hold"` and `"until"`.

use std::time::Duration;

use elver_handler::elver::{Gid, RemoteAddr};
use serde_json::{Value, json};

fn main() -> Result<(), elver_handler::Error> {
    let mut calls = 0;
    elver_handler::serve(|event, context| {
        calls += 1;
        let event: Value = serde_json::from_slice(event)?;
        let mut answer = json!({
            "calls": calls, "pid": std::process::id(), "start": context.start,
            "left_ms": context.time_left().as_millis() as u64,
        });
        if let Some(to) = event["to"].as_str() {
            let number =
                |name: &str| event[name].as_u64().ok_or(format!("the event has no {name}"));
            let from = RemoteAddr { addr: number("address")?, rkey: number("rkey")?.try_into()? };
            let rdma = context.rdma()?;
            let is_connected = |gid: Gid| rdma.connected().any(|destination| destination == gid);
            answer["found"] = to.parse().is_ok_and(is_connected).into();
            rdma.read(to, 16, 8, from)?;
            let mut bytes = [0; 8];
            rdma.mr.read(16, &mut bytes)?;
            answer["read"] = String::from_utf8_lossy(&bytes).into();
            answer["inherited"] = rdma.inherited.into();
        }
        if event["crash"] == true {
            std::process::abort();
        }
        assert!(event["panic"] != true, "as it was asked to");
        if event["inherits"] == true {
            answer["inherits"] = inherits()?.into();
        }
        if event["stray"] == true {
            answer["stray"] = stray()?.into();
        }
        std::thread::sleep(Duration::from_millis(event["hold"].as_u64().unwrap_or(0)));
        if let Some(file) = event["until"].as_str() {
            // Its function's time ends it if the file does not come.
            while !std::path::Path::new(file).exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(answer.to_string().into_bytes())
    })
}

/// The descriptors that a program has which it starts.
fn inherits() -> std::io::Result<String> {
    let said = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output()?;
    Ok(String::from_utf8_lossy(&said.stdout).into())
}

/// Leaves a process of its own session behind, whose parent has ended.
fn stray() -> std::io::Result<u32> {
    let said = std::process::Command::new("sh")
        .args(["-c", "setsid sleep 1000 >&- 2>&- & echo $!"])
        .output()?;
    let pid = String::from_utf8_lossy(&said.stdout).trim().parse();
    pid.map_err(std::io::Error::other)
}
