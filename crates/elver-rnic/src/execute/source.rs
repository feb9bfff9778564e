//! Where the bytes of a request come from: a packet, or the memory of a WR of the same device.

use elver_verbs::{Memory, Sge};

use super::fault::Fault;
use crate::maybe_pd::MaybePd;
use crate::place::Place;
use crate::regions::{Regions, Segment};

/// Bytes on their way into memory; each is copied once.
pub(crate) trait Source {
    fn len(&self) -> u32;

    /// Writes them to one checked place.
    fn put<M: Memory>(&self, regions: &Regions<M>, at: Place) -> Result<(), Fault>;

    /// Writes them over the message of `sges`, from `skip` bytes into it.
    fn scatter<M: Memory>(
        &self,
        regions: &Regions<M>,
        pd: MaybePd,
        sges: &[Sge],
        skip: u32,
    ) -> Result<(), Fault>;
}

/// The bytes of a packet, or of an inline WR.
impl Source for [u8] {
    #[inline]
    fn len(&self) -> u32 {
        <[u8]>::len(self) as u32
    }

    #[inline(always)]
    fn put<M: Memory>(&self, regions: &Regions<M>, at: Place) -> Result<(), Fault> {
        Ok(regions.write(at, self)?)
    }

    #[inline]
    fn scatter<M: Memory>(
        &self,
        regions: &Regions<M>,
        pd: MaybePd,
        sges: &[Sge],
        skip: u32,
    ) -> Result<(), Fault> {
        // A receive whose memory is not at hand serves nobody: another message might get it.
        regions.scatter(pd, sges, skip, self).map_err(|_| {
            regions.desk.clear();
            Fault::Operation
        })
    }
}

/// Registered memory of this device, all of it checked.
pub(crate) struct Segments<'a> {
    pub(crate) segments: &'a [Segment],
    /// Bytes of all.
    pub(crate) length: u32,
}

impl Source for Segments<'_> {
    fn len(&self) -> u32 {
        self.length
    }

    #[inline(always)] // Once for each WRITE within a device.
    fn put<M: Memory>(&self, regions: &Regions<M>, mut at: Place) -> Result<(), Fault> {
        for segment in self.segments {
            regions.copy(at, segment.place, u64::from(segment.length))?;
            at.offset += u64::from(segment.length);
        }
        Ok(())
    }

    fn scatter<M: Memory>(
        &self,
        regions: &Regions<M>,
        pd: MaybePd,
        sges: &[Sge],
        skip: u32,
    ) -> Result<(), Fault> {
        let mut sources = self.segments.iter();
        let mut source = Segment { place: Place { region: 0, offset: 0 }, length: 0 };
        regions.walk(pd, sges, skip, self.length, true, |regions, mut at, mut left| {
            while left > 0 {
                while source.length == 0 {
                    source = *sources.next().ok_or(Fault::Source)?;
                }
                let len = left.min(source.length);
                regions.copy_in(at, source.place, u64::from(len))?;
                at.offset += u64::from(len);
                left -= len;
                source.place.offset += u64::from(len);
                source.length -= len;
            }
            Ok(())
        })
    }
}
