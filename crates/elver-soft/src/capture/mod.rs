//! Recording what goes over a device's link, as pcapng: into a file while the device works ([`file`]),
//! or for another thread, which takes it when it likes ([`tap`]).

mod file;
mod headers;
pub(crate) mod pcapng;
pub(crate) mod tap;

use elver_wire::Flow;

pub(crate) use file::FileCapture;
pub use file::{left_out, recorded};
use headers::{Headers, put_ip};
pub(crate) use pcapng::{Direction, LinkType};
use tap::Tap;

/// Where a device records to.
pub(crate) enum Capture {
    /// A file.
    File(FileCapture),
    /// Another thread.
    Tap(Tap),
}

impl Capture {
    /// Records a UDP payload.
    #[cold]
    pub(crate) fn packet(
        &mut self,
        direction: Direction,
        flow: &Flow,
        traffic_class: u8,
        ip_id: u16,
        payload: &[u8],
    ) {
        let mut headers = Headers::default();
        put_ip(&mut headers, flow, traffic_class, ip_id, payload.len());
        self.record(direction, headers.bytes(), payload);
    }

    /// Records an Ethernet frame.
    #[cold]
    pub(crate) fn frame(&mut self, direction: Direction, frame: &[u8]) {
        self.record(direction, &[], frame);
    }

    /// Has in the file what was recorded so far.
    pub(crate) fn write(&mut self) {
        if let Capture::File(file) = self {
            file.write();
        }
    }

    fn record(&mut self, direction: Direction, headers: &[u8], payload: &[u8]) {
        match self {
            Capture::File(file) => file.record(direction, headers, payload),
            Capture::Tap(tap) => tap.record(direction, headers, payload),
        }
    }
}
