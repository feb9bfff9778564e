//! MPI by mpi4py: two ranks that compare what they send and put.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::super::process::Call;
use super::stage::{Said, Stage, borrowed, succeeded};

/// A message of 8 MiB both ways, and as much put both ways.
pub(super) const BYTES: u64 = 4 * (8 << 20);

/// Open MPI over its own UCX.
pub(super) fn openmpi(stage: &Stage<'_>) -> Result<Said> {
    if !stage.place.is_host() {
        return Ok(Said {
            skipped: Some("its ranks meet their launcher by TCP on one host's loopback"),
            ..Said::default()
        });
    }
    let as_root = [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
        ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ];
    let options = ["--oversubscribe", "--mca", "pml", "ucx", "-x", "UCX_TLS=rc,self"];
    ranks(stage, "openmpi", "mpirun", &options, &as_root)
}

/// MPICH over its own UCX.
pub(super) fn mpich_ucx(stage: &Stage<'_>) -> Result<Said> {
    let ucx = [("MPIR_CVAR_CH4_NETMOD", "ucx"), ("UCX_TLS", "rc,ud,self")];
    ranks(stage, "mpich", "mpiexec", &[], &[&ucx[..], &NO_SHARED_MEMORY].concat())
}

/// MPICH over its own libfabric.
pub(super) fn mpich_ofi(stage: &Stage<'_>) -> Result<Said> {
    let ofi = [("MPIR_CVAR_CH4_NETMOD", "ofi"), ("FI_PROVIDER", "verbs;ofi_rxm")];
    ranks(stage, "mpich", "mpiexec", &[], &[&ofi[..], &NO_SHARED_MEMORY].concat())
}

/// Intel's over Debian's libfabric: it brings none.
pub(super) fn intel(stage: &Stage<'_>) -> Result<Said> {
    let libraries = stage.installed.libraries("intel");
    let root = libraries.parent().and_then(Path::to_str).context("a path of UTF-8")?;
    // Not by its own shared memory.
    let ofi = [("I_MPI_FABRICS", "ofi"), ("FI_PROVIDER", "verbs;ofi_rxm"), ("I_MPI_ROOT", root)];
    ranks(stage, "intel", "mpiexec.hydra", &["-bootstrap", "fork"], &ofi)
}

/// Two ranks of one host would else speak by MPICH's own shared memory.
const NO_SHARED_MEMORY: [(&str, &str); 1] = [("MPIR_CVAR_NOLOCAL", "1")];

fn ranks(
    stage: &Stage<'_>,
    environment: &str,
    launcher: &str,
    options: &[&str],
    env: &[(&str, &str)],
) -> Result<Said> {
    let launcher = stage.installed.program(environment, launcher);
    let python = stage.installed.program(environment, "python");
    let rank = stage.script(&python, "mpi.py", &[])?;
    let mut words = vec![launcher.to_str().context("a path of UTF-8")?];
    words.extend(options);
    for (end, before) in stage.place.before.iter().enumerate() {
        if end > 0 {
            words.push(":");
        }
        words.extend(["-n", "1"]);
        words.extend(borrowed(before));
        words.extend(borrowed(&rank));
    }
    let libraries = stage.installed.libraries(environment);
    let libraries = libraries.to_str().context("a path of UTF-8")?;
    let env = [env, &[("LD_LIBRARY_PATH", libraries)]].concat();
    let call = Call { words: &words, env: &env, ..Call::default() };
    let ended = stage.runner.start(&call, Path::new("/"))?.end()?;
    succeeded("the launcher", &ended)?;
    // Two that speak at once may have one line.
    let same = ended.said.matches("same").count();
    ensure!(same == 2, "{same} ranks of 2 say that they received the same");
    Ok(Said::default())
}
