//! Hosts by the hundred on one thread: each has a device on an address of its own, a DC target,
//! memory that peers may read, and a record in the meta server's table. They answer real packets;
//! what they lack of a node is its sessions, its registry and its threads.

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result, ensure};
use elver_core::{ClientLimits, Config, Core};
use elver_node::now;
use elver_soft::{SoftConfig, SoftDevice};
use elver_verbs::{AccessFlags, Device, Gid, Memory, RemoteAddr};
use rustix::event::{Timespec, epoll};

use crate::pattern::{SEED, patterned};

/// Most hosts: their addresses are of one /24.
pub const HOSTS_MAX: u32 = 250;
/// Bytes that each offers. The first word is a worker's pattern, the second one the host's number.
const REGION: u64 = 4_096;
/// Where the number is.
pub const NUMBER_AT: u64 = 8;
/// Messages that a host can take at once: none are sent to it but those of connections.
const BUFFERS: u32 = 32;
/// Hosts that are told of by one look.
const LOOK: usize = 64;
/// Turns of a host that has packets: more are taken at the next look.
const TURNS: u32 = 8;

/// Many hosts.
pub struct Hosts {
    hosts: Vec<Host>,
    ready: OwnedFd,
    /// Whose timers are looked at next.
    next: usize,
}

struct Host {
    core: Core<SoftDevice>,
    known: HostKnown,
}

/// What others must know of a host.
#[derive(Clone, Copy, Debug)]
pub struct HostKnown {
    /// Its GID.
    pub gid: Gid,
    /// Its memory.
    pub remote: RemoteAddr,
}

impl Hosts {
    /// Opens so many on the addresses from `first` on, and puts their records into the table of the
    /// meta server `meta`.
    ///
    /// # Errors
    ///
    /// Too many, a device that cannot be opened, or a table that has no room.
    pub fn open(first: Ipv4Addr, count: u32, meta: &mut Core<SoftDevice>) -> Result<Hosts> {
        ensure!(count <= HOSTS_MAX, "{count} hosts, of at most {HOSTS_MAX}");
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll_create")?;
        let mut hosts = Vec::with_capacity(count as usize);
        let server = meta.serve_meta(HOSTS_MAX)?;
        for number in 0..count {
            let address = Ipv4Addr::from_bits(first.to_bits() + number);
            let mut host = Host::open(address, number)
                .with_context(|| format!("host {number} on {address}"))?;
            meta.meta_put(host.known.gid, host.core.record())?;
            // It answers requests of those alone that it finds there.
            host.core.set_meta_servers(&[server], now());
            if let Some(fd) = host.core.device().as_fd() {
                let data = epoll::EventData::new_u64(u64::from(number));
                epoll::add(&ready, fd, data, epoll::EventFlags::IN).context("epoll_ctl")?;
            }
            hosts.push(host);
        }
        Ok(Hosts { hosts, ready, next: 0 })
    }

    /// What others must know of each.
    pub fn known(&self) -> Vec<HostKnown> {
        self.hosts.iter().map(|host| host.known).collect()
    }

    /// Those that have packets take them; one of the others looks at its timers.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn poll(&mut self) -> Result<()> {
        if self.hosts.is_empty() {
            return Ok(());
        }
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; LOOK];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (ready, _) = epoll::wait(&self.ready, &mut events, Some(&at_once)).context("epoll")?;
        for event in ready {
            let data = event.data;
            self.hosts[data.u64() as usize].turn();
        }
        self.hosts[self.next].turn();
        self.next = (self.next + 1) % self.hosts.len();
        Ok(())
    }
}

impl Host {
    fn open(address: Ipv4Addr, number: u32) -> Result<Host> {
        let soft = SoftConfig { publish: false, ..SoftConfig::for_address(IpAddr::V4(address)) };
        // One thread drives hundreds of them: they have no time to ask whether the others are there.
        let config = Config { recv_buffers: BUFFERS, keep_alive_ns: 0, ..Config::default() };
        let mut core = Core::new(SoftDevice::open(soft)?, config, seed()?, now())?;
        let client = core.client_open(ClientLimits::default())?;
        let memory = core.device().alloc_memory(REGION)?;
        memory.write(0, &patterned(SEED, 0, REGION as usize))?;
        memory.write(NUMBER_AT, &u64::from(number).to_ne_bytes())?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        let mr = core.reg_mr(client, memory, None, access)?;
        let known =
            HostKnown { gid: core.gid(), remote: RemoteAddr { addr: mr.addr, rkey: mr.rkey } };
        Ok(Host { core, known })
    }

    fn turn(&mut self) {
        for _ in 0..TURNS {
            if !self.core.poll(now()) {
                return;
            }
        }
    }
}

/// Keys of a host's are drawn from it.
fn seed() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
        .context("getrandom")?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_is_another_one() {
        let first = Ipv4Addr::new(127, 78, 0, 10);
        let mut meta = Host::open(Ipv4Addr::new(127, 78, 0, 1), 0).unwrap();
        meta.core.serve_meta(8).unwrap();
        let mut hosts = Hosts::open(first, 3, &mut meta.core).unwrap();
        let mut gids: Vec<Gid> = hosts.known().iter().map(|known| known.gid).collect();
        gids.dedup();
        assert_eq!(gids.len(), 3);
        hosts.poll().unwrap();
        assert!(Hosts::open(first, HOSTS_MAX + 1, &mut meta.core).is_err());
    }
}
