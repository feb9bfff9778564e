//! What a process asks for in its greeting already, so that it is there when the session is.

use elver_verbs::{ConnectOptions, Gid};

use crate::command::{VqpOptions, connect_options, connect_word, vqp_options};
use crate::fields::{Reader, halves, join, port};
use crate::ring::Violation;

/// Bytes that it takes in a greeting.
pub(crate) const FIRST_BYTES: usize = 8 * WORDS;
const WORDS: usize = 5;

/// A session's first VQP, and whom it is connected to: what [`crate::Command::CreateVqp`] and
/// [`crate::Command::Connect`] would ask for, two turns later. The answers stand in the completion ring, under
/// [`First::CREATE`] and, if there is a VQP, [`First::CONNECT`]. Since minor version 3; a node that took it says so
/// in [`crate::Welcome::first`], and from another the process asks for it by commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// What the VQP is created with.
    pub options: VqpOptions,
    /// The peer.
    pub gid: Gid,
    /// The port there.
    pub port: u16,
    /// How it is connected.
    pub connect: ConnectOptions,
}

impl First {
    /// The request whose answer names the VQP.
    pub const CREATE: u32 = 1;
    /// The request whose answer tells how the connect ended.
    pub const CONNECT: u32 = 2;

    pub(crate) fn encode(&self) -> [u8; FIRST_BYTES] {
        let [lengths, kind] = self.options.words();
        let (low, high) = self.gid.0.split_at(8);
        let words = [
            lengths.to_le_bytes(),
            kind.to_le_bytes(),
            join(connect_word(self.connect), u32::from(self.port)).to_le_bytes(),
            core::array::from_fn(|at| low[at]),
            core::array::from_fn(|at| high[at]),
        ];
        core::array::from_fn(|at| words[at / 8][at % 8])
    }

    pub(crate) fn decode(bytes: [u8; FIRST_BYTES]) -> Result<First, Violation> {
        let (words, _) = bytes.as_chunks::<8>();
        let words: [u64; WORDS] = core::array::from_fn(|at| u64::from_le_bytes(words[at]));
        let mut fields = Reader::new(&words);
        let options = vqp_options(fields.word()?, fields.word()?)?;
        let (how, number) = halves(fields.word()?);
        let connect = connect_options(u64::from(how))?;
        Ok(First { options, gid: fields.gid()?, port: port(number, "port")?, connect })
    }
}
