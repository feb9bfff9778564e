//! What `elver capture` is asked for.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct CaptureArgs {
    /// The file to write; with two devices the second one's stands beside it.
    #[arg(short = 'w', long = "write")]
    pub(crate) file: PathBuf,
    /// The command to run, such as `perf pair read --placement loopback`.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}
