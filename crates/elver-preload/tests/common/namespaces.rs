//! Two network namespaces with a link between them.

use std::process::Command;

use crate::common::succeeded;

/// They go when it does.
pub struct Namespaces {
    names: [String; 2],
    network: u8,
}

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    succeeded(&format!("ip {words} (it needs root)"), &output);
}

impl Namespaces {
    /// A pair of a test program's own, whose addresses are in a network of its own, 10.77.NETWORK.0.
    pub fn new(program: &str, network: u8) -> Namespaces {
        let id = std::process::id();
        let made =
            Namespaces { names: ["a", "b"].map(|end| format!("{program}-{id}-{end}")), network };
        let [a, b] = &made.names;
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        ip(&format!("link add pl0 netns {a} type veth peer name pl0 netns {b}"));
        for (end, namespace) in made.names.iter().enumerate() {
            ip(&format!("-n {namespace} addr add {}/24 dev pl0", made.address(end)));
            ip(&format!("-n {namespace} link set pl0 up"));
        }
        made
    }

    /// The address of an end, 0 or 1.
    pub fn address(&self, end: usize) -> String {
        format!("10.77.{}.{}", self.network, end + 1)
    }

    /// The file that is an end's namespace.
    #[allow(dead_code, reason = "not every test program enters one")]
    pub fn path(&self, end: usize) -> String {
        format!("/run/netns/{}", self.names[end])
    }

    /// The words that run a program at an end.
    pub fn at(&self, end: usize) -> [String; 6] {
        let address = format!("ELVER_ADDRESS={}", self.address(end));
        ["ip", "netns", "exec", &self.names[end], "env", &address].map(str::to_string)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in &self.names {
            // One that was not made is not there to go.
            let _ = Command::new("ip").args(["netns", "del", namespace]).output();
        }
    }
}
