//! `elver capture`: what a running node sends and receives, as pcapng.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, value_parser};
use elver_console::{Failure, Progress};
use elver_node::capture::{BUFFER_BYTES_MAX, CaptureOptions, CaptureStream};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::status::usual_socket;

/// The longest block of a capture.
const BLOCK_BYTES_MAX: usize = 1 << 20;
/// Who may read a capture.
const MODE: u32 = 0o600;
/// How often it is told how many packets there are.
const LIVE_PAUSE: Duration = Duration::from_millis(250);
/// How long a node may take to end a capture.
const END_WAIT: Duration = Duration::from_secs(60);
/// Types of pcapng blocks.
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
/// Of a statistics block: where its options begin, and which of them says how many are missing.
const STATISTICS_OPTIONS: usize = 20;
const ISB_IFDROP: u16 = 5;

const EXAMPLES: &str = "\
Examples:
  elver capture -w node.pcapng
      what this host's node sends and receives, until Ctrl-C; Wireshark and tshark read it
  elver capture -w - | tshark -i - -X lua_script:contrib/wireshark/elver.lua
      the same, live, with our own headers; each packet's comment names its VQPs; an installation has
      the script in PREFIX/share/elver/wireshark
  elver capture -w node.pcapng --duration 10 --snap 128
      the headers of ten seconds
  elver capture -w read.pcapng perf pair read --placement loopback
      what an elver command's device sends and receives

Only the node's own user and root may. What VQPs of one node send each other is copied in memory, and
leaves no packet. Packets that come faster than they are read are left out: the end says how many. What a command records is at most 1 GiB for
each of its devices; packets that a file lacks, for that or for a full disk, make the exit code 1.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CaptureArgs {
    /// The file to write, - for standard output; of a command with two devices the second one's stands
    /// beside it.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    file: PathBuf,
    /// The node's socket; by default ELVER_SOCKET, else where elverd puts it.
    #[arg(long, value_name = "PATH", conflicts_with = "command")]
    socket: Option<PathBuf>,
    /// End after so many seconds.
    #[arg(long, value_name = "SECONDS", conflicts_with = "command")]
    duration: Option<f64>,
    /// End after so many packets.
    #[arg(long, value_name = "COUNT", conflicts_with = "command",
          value_parser = value_parser!(u64).range(1..))]
    packets: Option<u64>,
    /// Keep so many bytes of each packet.
    #[arg(long, value_name = "BYTES", default_value_t = 65_535, conflicts_with = "command",
          value_parser = value_parser!(u32).range(64..=65_535))]
    snap: u32,
    /// Mebibytes that may wait at the node to be read.
    #[arg(long, value_name = "MIB", default_value_t = 16, conflicts_with = "command",
          value_parser = value_parser!(u32).range(1..=i64::from(BUFFER_BYTES_MAX >> 20)))]
    buffer: u32,
    /// Tell the numbers at the end as JSON; of a command, behind what that prints.
    #[arg(long)]
    pub(crate) json: bool,
    /// The command to run, such as `perf pair read --placement loopback`; none: a running node.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}

impl CaptureArgs {
    /// Where the devices of a command record to.
    pub(crate) fn file_of_command(&self) -> Result<&Path, Failure> {
        if self.is_stdout() {
            return Err(Failure::unusable("a command's packets go to a file: -w FILE"));
        }
        Ok(&self.file)
    }

    fn is_stdout(&self) -> bool {
        self.file == Path::new("-")
    }
}

/// Records a running node.
pub(crate) fn run(args: &CaptureArgs) -> Result<(), Failure> {
    let limit = match args.duration {
        None => None,
        Some(seconds) if seconds > 0.0 && seconds <= 1e9 => {
            Some(Instant::now() + Duration::from_secs_f64(seconds))
        }
        Some(seconds) => {
            return Err(Failure::unusable(format!(
                "--duration {seconds:?}: it must be above 0 and at most 1e9 seconds"
            )));
        }
    };
    if args.is_stdout() && io::stdout().is_terminal() {
        let what = "a capture is not for a terminal: -w FILE, or | tshark -i -";
        return Err(Failure::unusable(what));
    }
    // Somebody may be awaited who reads it, and nothing is recorded meanwhile.
    let output = Output::open(args)?;
    // Then, so that a signal ends a capture as it should end.
    let (bell, ringer) = UnixStream::pair().context("cannot take signals")?;
    for signal in [SIGINT, SIGTERM] {
        let ringer = ringer.try_clone().context("cannot take signals")?;
        pipe::register(signal, ringer).context("cannot take signals")?;
    }
    let options = CaptureOptions { snap_bytes: args.snap, buffer_bytes: args.buffer << 20 };
    let socket = args.socket.clone().unwrap_or_else(usual_socket);
    let stream =
        CaptureStream::open(&socket, &options).inspect_err(|_| output.forget(&args.file))?;
    let cannot_write = || format!("cannot write to {}", args.file.display());
    output.begin(args).with_context(cannot_write)?;
    // What reads standard output may write on the same terminal.
    let mut live = (!args.is_stdout()).then(|| Live::begin(&args.file));
    let mut blocks = Blocks::new(args.packets);
    let passed_on = pass_on(stream, &bell, limit, &mut blocks, &output.file, &mut live);
    drop(live);
    let is_as_asked = match passed_on {
        Ok(is_as_asked) => is_as_asked,
        Err(Broken::Node(error)) => return Err(error.into()),
        // Whoever reads it has enough.
        Err(Broken::File(error)) if error.kind() == io::ErrorKind::BrokenPipe => true,
        Err(Broken::File(error)) => return Err(error).with_context(cannot_write)?,
    };
    let (packets, lost) = (blocks.packets, blocks.lost);
    let line = if args.json { as_json(packets, lost) } else { as_text(packets, lost) };
    if args.is_stdout() {
        eprintln!("{line}");
    } else {
        elver_console::say!("{line}");
    }
    if !is_as_asked {
        return Err(anyhow::anyhow!("the node ended while it was recorded").into());
    }
    Ok(())
}

/// Prints what the files of a command have and lack. As text not where the command's own output is read by a program.
pub(crate) fn tell(packets: u64, left_out: u64, is_json: bool) {
    if is_json {
        elver_console::say!("{}", as_json(packets, Some(left_out)));
    } else {
        eprintln!("{}", as_text(packets, Some(left_out)));
    }
}

fn as_json(packets: u64, left_out: Option<u64>) -> String {
    serde_json::json!({ "packets": packets, "left_out": left_out }).to_string()
}

fn as_text(packets: u64, left_out: Option<u64>) -> String {
    let left_out = left_out.map_or("an unknown number".to_string(), |count| count.to_string());
    format!("{packets} packets recorded, {left_out} left out")
}

/// Where a capture goes.
struct Output {
    file: File,
    /// It was not there before.
    is_new: bool,
}

impl Output {
    /// Leaves what is in a file there until the capture begins: that it is refused costs no earlier one.
    fn open(args: &CaptureArgs) -> Result<Output, Failure> {
        let cannot_write = || format!("cannot write to {}", args.file.display());
        if args.is_stdout() {
            let file = io::stdout().as_fd().try_clone_to_owned().with_context(cannot_write)?;
            return Ok(Output { file: file.into(), is_new: false });
        }
        let mut options = OpenOptions::new();
        options.write(true).mode(MODE);
        let (opened, is_new) = match options.clone().create_new(true).open(&args.file) {
            // It may be a link to a place where nothing is.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                (options.create(true).truncate(false).open(&args.file), false)
            }
            opened => (opened, true),
        };
        Ok(Output { file: opened.with_context(cannot_write)?, is_new })
    }

    /// Makes a file its owner's alone, also where one was there, and empties it: what is recorded is everybody's, and the
    /// keys to it. Standard output is what whoever opened it wanted.
    fn begin(&self, args: &CaptureArgs) -> io::Result<()> {
        if !args.is_stdout() && self.file.metadata()?.is_file() {
            self.file.set_permissions(Permissions::from_mode(MODE))?;
            self.file.set_len(0)?;
        }
        Ok(())
    }

    /// Removes a file that nothing comes into.
    fn forget(&self, path: &Path) {
        if self.is_new {
            // Somebody may have tidied up already.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Which of both ends a capture fails at.
enum Broken {
    Node(io::Error),
    File(io::Error),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Broken {
        Broken::Node(error)
    }
}

/// Passes on what the node records, in whole blocks, until its end, which a signal, the time or the
/// number of packets asks for; whether one of them did, and not the node's own end.
fn pass_on(
    mut stream: CaptureStream,
    bell: &UnixStream,
    limit: Option<Instant>,
    blocks: &mut Blocks,
    output: &File,
    live: &mut Option<Live>,
) -> Result<bool, Broken> {
    let mut limit = limit;
    let mut is_ending = false;
    let mut bytes = vec![0; 256 << 10];
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
        fds.push(PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN));
        // Whether anybody reads it is told unasked.
        fds.push(PollFd::from_borrowed_fd(output.as_fd(), PollFlags::empty()));
        let told = live.as_mut().and_then(|live| live.recorded(blocks.packets));
        let until = limit.into_iter().chain(told).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // A time too far away to be said is none.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Broken::Node(error.into())),
        }
        let [arrived, rung] = [0, 1].map(|at: usize| !fds[at].revents().is_empty());
        if fds[2].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            return Err(Broken::File(io::ErrorKind::BrokenPipe.into()));
        }
        if arrived {
            let count = stream.read(&mut bytes)?;
            if count == 0 {
                return Ok(is_ending);
            }
            blocks.take(&bytes[..count], &mut &*output)?;
        }
        if is_ending {
            // A second signal: what was written is whole.
            let late = limit.is_some_and(|limit| Instant::now() >= limit);
            if late || rung {
                return Ok(true);
            }
            continue;
        }
        let late = limit.is_some_and(|limit| Instant::now() >= limit);
        if rung || late || blocks.has_enough() {
            if rung {
                // One is enough; it is read so that the next can be told from it.
                let _ = (&*bell).read(&mut [0]);
            }
            is_ending = true;
            limit = Some(Instant::now() + END_WAIT);
            stream.finish()?;
        }
    }
}

/// How many packets there are so far, on a terminal.
struct Live {
    progress: Progress,
    file: String,
    told: u64,
    next: Instant,
}

impl Live {
    fn begin(file: &Path) -> Live {
        let live = Live {
            progress: Progress::begin(),
            file: file.display().to_string(),
            told: 0,
            next: Instant::now() + LIVE_PAUSE,
        };
        live.show();
        live
    }

    /// Tells so many, not too often; when to tell it if not now.
    fn recorded(&mut self, packets: u64) -> Option<Instant> {
        if packets == self.told {
            return None;
        }
        let now = Instant::now();
        if now < self.next {
            return Some(self.next);
        }
        (self.told, self.next) = (packets, now + LIVE_PAUSE);
        self.show();
        None
    }

    fn show(&self) {
        let Live { file, told, .. } = self;
        self.progress.doing(&format!("recording to {file}: {told} packets; Ctrl-C ends it"));
    }
}

/// Cuts a stream into blocks, and counts what they say.
struct Blocks {
    /// What has come of the next one.
    rest: Vec<u8>,
    packets: u64,
    packets_max: u64,
    /// Packets that are missing, once that is told.
    lost: Option<u64>,
}

impl Blocks {
    fn new(packets_max: Option<u64>) -> Blocks {
        let packets_max = packets_max.unwrap_or(u64::MAX);
        Blocks { rest: Vec::new(), packets: 0, packets_max, lost: None }
    }

    fn has_enough(&self) -> bool {
        self.packets >= self.packets_max
    }

    /// Takes bytes in, and writes the blocks that are whole now, of packets no more than are wanted.
    fn take(&mut self, bytes: &[u8], writer: &mut dyn Write) -> Result<(), Broken> {
        self.rest.extend(bytes);
        let mut at = 0;
        while let Some(head) = self.rest[at..].first_chunk::<8>() {
            let [kind, len] = [0, 4].map(|at| word(head, at));
            let len = len as usize;
            if !(12..=BLOCK_BYTES_MAX).contains(&len) {
                let what = format!("the node sent a block of {len} bytes, which pcapng has not");
                return Err(Broken::Node(io::Error::new(io::ErrorKind::InvalidData, what)));
            }
            let Some(block) = self.rest.get(at..at + len) else { break };
            at += len;
            match kind {
                PACKET if self.packets >= self.packets_max => continue,
                PACKET => self.packets += 1,
                STATISTICS => self.lost = lost(block),
                _ => {}
            }
            writer.write_all(block).map_err(Broken::File)?;
        }
        self.rest.drain(..at);
        Ok(())
    }
}

/// The number of missing packets in a statistics block.
fn lost(block: &[u8]) -> Option<u64> {
    let mut at = STATISTICS_OPTIONS;
    loop {
        let head = block.get(at..at + 4)?;
        let (code, len) =
            (u16::from_le_bytes([head[0], head[1]]), u16::from_le_bytes([head[2], head[3]]));
        if code == ISB_IFDROP {
            return Some(u64::from_le_bytes(*block.get(at + 4..)?.first_chunk()?));
        }
        if code == 0 {
            return None;
        }
        at += 4 + usize::from(len).next_multiple_of(4);
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use elver_soft::record::{self, Direction, LinkType, Recorded};

    /// Not for each packet, and the last number in the end.
    #[test]
    fn the_number_of_packets_is_told_now_and_then() {
        let mut live = Live::begin(Path::new("x.pcapng"));
        assert_eq!(live.recorded(0), None);
        live.next = Instant::now() + Duration::from_secs(3600);
        assert_eq!((live.recorded(5), live.told), (Some(live.next), 0));
        live.next = Instant::now();
        assert_eq!((live.recorded(9), live.told), (None, 9));
        assert!(live.next > Instant::now());
    }

    /// Whatever pieces a capture comes in, what is written ends with a block, and of packets there are no
    /// more than were asked for.
    #[test]
    fn only_whole_blocks_are_written() {
        let mut file = Vec::new();
        record::begin(&mut file, LinkType::Ip, "elver0", "test", 0);
        let head = file.len();
        let packet =
            Recorded { unix_ns: 1, direction: Direction::In, bytes: &[1; 61], len: 61, lost: 0 };
        record::packet(&mut file, &packet, "VQP 0x1");
        let one = file.len() - head;
        record::packet(&mut file, &packet, "VQP 0x1");
        record::statistics(&mut file, 2, 9, 7);
        let end = file.len() - head - 2 * one;
        for piece in 1..file.len() {
            for packets_max in [1, 2, 3] {
                let mut blocks = Blocks::new(Some(packets_max));
                let mut written = Vec::new();
                for bytes in file.chunks(piece) {
                    assert!(blocks.take(bytes, &mut written).is_ok());
                }
                let packets = packets_max.min(2);
                assert_eq!((blocks.packets, blocks.lost), (packets, Some(7)));
                assert_eq!(written.len(), head + packets as usize * one + end);
            }
        }
        let Err(Broken::Node(wrong)) = Blocks::new(None).take(&[0xff; 8], &mut Vec::new()) else {
            panic!("it is no block")
        };
        assert_eq!(wrong.kind(), io::ErrorKind::InvalidData);
    }
}
