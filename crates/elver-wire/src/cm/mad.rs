use super::{CmError, Message};
use crate::bytes::{u16_at, u64_at};

/// Bytes of a management datagram.
pub const MAD_LEN: usize = 256;
/// Bytes of its header.
pub(super) const HEADER: usize = 24;
/// Communication management (IBTA vol. 1, table 110).
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
const BASE_VERSION: u8 = 1;
/// ComMgtSend.
const SEND: u8 = 0x03;

/// A management datagram of the communication manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad<'a> {
    /// What a message and its answers have in common, as its sender chose it.
    pub transaction: u64,
    /// What it says.
    pub message: Message<'a>,
}

impl<'a> Mad<'a> {
    /// Checks received bytes.
    ///
    /// # Errors
    /// Each of [`CmError`]'s but those of private data. No bytes make it panic.
    pub fn parse(bytes: &'a [u8]) -> Result<Mad<'a>, CmError> {
        let got = bytes.len();
        let bytes: &[u8; MAD_LEN] = bytes.try_into().map_err(|_| CmError::Length { got })?;
        if bytes[0] != BASE_VERSION || bytes[2] != CLASS_VERSION {
            return Err(CmError::Version { base: bytes[0], class: bytes[2] });
        }
        if bytes[1] != CLASS {
            return Err(CmError::Class(bytes[1]));
        }
        if bytes[3] != SEND {
            return Err(CmError::Method(bytes[3]));
        }
        let message = Message::parse(u16_at(bytes, 16), &bytes[HEADER..])?;
        Ok(Mad { transaction: u64_at(bytes, 8), message })
    }

    /// Its bytes; what is shorter than its room is filled up with zeros.
    ///
    /// # Errors
    /// [`CmError::Room`] if private data or information is longer than its room.
    pub fn write(&self) -> Result<[u8; MAD_LEN], CmError> {
        let mut bytes = [0; MAD_LEN];
        bytes[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, SEND]);
        bytes[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        bytes[16..18].copy_from_slice(&self.message.attribute().to_be_bytes());
        self.message.write(&mut bytes[HEADER..])?;
        Ok(bytes)
    }
}
