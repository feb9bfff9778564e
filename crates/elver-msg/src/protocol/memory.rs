use super::frame::Remote;
use super::request_id::RequestId;

/// Where a message's bytes are, or go.
pub trait Memory {
    /// Copies bytes of a message out, from `offset` on; they are there.
    fn read(&self, offset: u64, into: &mut [u8]);

    /// Takes the next bytes of a message; `offset` says how many came before.
    fn write(&mut self, offset: u64, bytes: &[u8]);

    /// Where peers READ it, if it is registered memory. READs may then also write it.
    fn remote(&self) -> Option<Remote>;
}

/// Whose the bytes of a request are.
#[derive(Debug)]
pub enum Held<M> {
    /// The request's.
    Own(M),
    /// The caller's, who waits for it and hands them in with each call ([`Lent`]).
    Lent,
}

/// What a caller lends who waits for requests: bytes to send, and room for a message.
#[derive(Debug, Default)]
pub struct Lent<'a> {
    /// What is sent, and by which request.
    pub send: Option<(RequestId, &'a [u8])>,
    /// Where a message goes, and by which request.
    pub receive: Option<(RequestId, &'a mut [u8])>,
}

impl Lent<'_> {
    /// Nothing.
    pub fn none() -> Lent<'static> {
        Lent::default()
    }

    /// Copies bytes that a request sends; whether they were lent.
    pub(super) fn read(&self, request: RequestId, offset: u64, into: &mut [u8]) -> bool {
        let Some((_, bytes)) = self.send.filter(|(lent, _)| *lent == request) else { return false };
        let from = offset as usize;
        into.copy_from_slice(&bytes[from..from + into.len()]);
        true
    }

    /// Puts bytes where a request wants them. Nobody wants those of one whose caller has given up.
    pub(super) fn write(&mut self, request: RequestId, offset: u64, bytes: &[u8]) {
        if let Some((_, room)) = self.receive.as_mut().filter(|(lent, _)| *lent == request) {
            let from = offset as usize;
            room[from..from + bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// Takes frames for a peer.
pub trait Outlet {
    /// Why it failed.
    type Error;

    /// Puts a frame in: the header, and so many bytes of a body, which `fill` makes. False if there is no room
    /// now.
    ///
    /// # Errors
    /// The peer is gone.
    fn put(
        &mut self,
        header: &super::Header,
        body: usize,
        fill: impl FnMut(&mut [u8]),
    ) -> Result<bool, Self::Error>;
}
