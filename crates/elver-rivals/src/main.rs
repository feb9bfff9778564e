//! gRPC as tonic has it, to be measured beside Elver's calls: an echo of bytes, without a coder of
//! messages, over one HTTP/2 connection on TCP without delay.
//!
//! `elver-rival-grpc serve ADDRESS` says `ready` and where, and serves until its input ends.
//! `elver-rival-grpc call ADDRESS --in-flight N` measures, and prints a line of JSON: seconds, and how
//! often each latency in nanoseconds was seen. `elver bench rpc --rival PATH` runs both.

mod client;
mod codec;
mod server;

use std::net::SocketAddr;

use anyhow::Result;
use clap::{Parser, Subcommand, value_parser};
use tokio::runtime::{Builder, Runtime};

#[derive(Debug, Parser)]
#[command(name = "elver-rival-grpc", about = "gRPC's echo, to be measured beside Elver's")]
struct Arguments {
    /// Threads of tokio's runtime; 1 takes the one that has no others.
    #[arg(long, global = true, default_value_t = 1, value_parser = value_parser!(u16).range(1..=64))]
    threads: u16,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answers with what it is sent, until its input ends.
    Serve {
        /// Where.
        address: SocketAddr,
    },
    /// Calls, with so many under way.
    Call {
        /// Whom.
        address: SocketAddr,
        #[command(flatten)]
        load: client::Load,
    },
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = runtime(arguments.threads)?;
    match arguments.command {
        Command::Serve { address } => runtime.block_on(server::serve(address)),
        Command::Call { address, load } => {
            println!("{}", runtime.block_on(client::measure(address, &load))?);
            Ok(())
        }
    }
}

fn runtime(threads: u16) -> Result<Runtime> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads.into());
    }
    Ok(builder.enable_all().build()?)
}
