//! Large programs that nobody here wrote, unmodified: downloaded, run between two processes of one host and between two
//! network namespaces, with what they moved compared, and with proof that it went over Elver.

mod caches;
mod dlslime;
mod installed;
mod mooncake;
mod mpi;
mod nixl;
mod qemu;
mod stage;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::counted::Counted;
use super::outcome::{Item, Outcome};
use super::place::Place;
use super::process::Runner;
use installed::Installed;
use stage::{Said, Stage};

/// A row: its name, where pip puts what it needs, its transport, bytes that it moves at the least, and how it is run.
struct Row {
    name: &'static str,
    environment: Option<&'static str>,
    transport: &'static str,
    bytes: u64,
    run: fn(&Stage<'_>) -> Result<Said>,
}

const fn row(
    name: &'static str,
    environment: Option<&'static str>,
    transport: &'static str,
    bytes: u64,
    run: fn(&Stage<'_>) -> Result<Said>,
) -> Row {
    Row { name, environment, transport, bytes, run }
}

const ROWS: [Row; 12] = [
    row(
        "Mooncake 0.3.13: its transfer engine by Python, a thread a device",
        Some("moving"),
        "RC",
        2 << 20,
        mooncake::moves,
    ),
    row(
        "Mooncake 0.3.13: transfer_engine_bench, a thread a device",
        Some("moving"),
        "RC",
        1 << 20,
        mooncake::bench,
    ),
    row("NIXL 1.5.1: its agent (UCX 1.23)", Some("moving"), "RC, UD", 2 << 20, nixl::moves),
    row(
        "NIXL 1.5.1: its agent, keepalive off",
        Some("moving"),
        "RC, UD",
        2 << 20,
        nixl::moves_quietly,
    ),
    row("QEMU 7.2: migrate uri=rdma:", None, "RC", qemu::PATTERN, qemu::migrates),
    row("Open MPI 5.0.11: pml ucx (UCX 1.20)", Some("openmpi"), "RC, UD", mpi::BYTES, mpi::openmpi),
    row("MPICH 5.0.2: ch4:ucx", Some("mpich"), "RC, UD", mpi::BYTES, mpi::mpich_ucx),
    row("MPICH 5.0.2: ch4:ofi (verbs;ofi_rxm)", Some("mpich"), "RC", mpi::BYTES, mpi::mpich_ofi),
    row(
        "Intel MPI 2021.19: ofi (libfabric 1.17, verbs;ofi_rxm)",
        Some("intel"),
        "RC",
        mpi::BYTES,
        mpi::intel,
    ),
    row("DLSlime 0.1.23: its endpoints", Some("dlslime"), "RC", 2 << 20, dlslime::moves),
    row("PeerCache 0.8.4: its stores", Some("caches"), "RC", caches::PAGES, caches::peercache),
    // Its pages go to the server and come back.
    row(
        "InfiniStore 0.2.35: its server and client",
        Some("caches"),
        "RC",
        2 * caches::PAGES,
        caches::infinistore,
    ),
];

/// Installs those that are to be run below a folder, and runs them.
pub(super) fn run(runner: &Runner, root: &Path, below: &Path) -> Result<Vec<Item>> {
    let rows: Vec<&Row> = ROWS.iter().filter(|row| runner.wants(row.name)).collect();
    let installed = Installed::below(below, rows.iter().filter_map(|row| row.environment))?;
    let scratch = below.join("scratch");
    fs::create_dir_all(&scratch).with_context(|| format!("{}", scratch.display()))?;
    let mut items = Vec::new();
    for place in [Place::host(), Place::namespaces()?] {
        let words = root.join("crates/elver-preload/large");
        let stage =
            Stage { runner, place: &place, installed: &installed, words, scratch: scratch.clone() };
        for row in &rows {
            let item = stage.item(row)?;
            println!(
                "{}: {}, {}, {} {}",
                item.outcome, item.name, item.place, item.measured, item.said
            );
            items.push(item);
        }
    }
    Ok(items)
}

impl Stage<'_> {
    fn item(&self, row: &Row) -> Result<Item> {
        Counted::forget(&self.runner.told)?;
        let came_to = (row.run)(self);
        let counted = Counted::read(&self.runner.told)?;
        let mut item = Item::new(row.name.to_string(), Outcome::Pass, String::new());
        item.transport = row.transport.to_string();
        item.place = self.place.name.to_string();
        match came_to.and_then(|said| match said.skipped {
            None => counted.prove(row.bytes).map(|()| said),
            Some(_) => Ok(said),
        }) {
            Ok(Said { measured, skipped }) => {
                item.measured = measured;
                if let Some(why) = skipped {
                    (item.outcome, item.said) = (Outcome::Skip, why.to_string());
                }
            }
            Err(error) => (item.outcome, item.said) = (Outcome::Fail, format!("{error:#}")),
        }
        Ok(item)
    }
}
