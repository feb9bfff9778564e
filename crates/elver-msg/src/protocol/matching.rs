//! Which message goes to which receive. The rule is MPI's (MPI 4.1, section 3.5): of the receives that a
//! message fits the one that was posted first takes it; of the messages that fit a receive and came from one
//! rank the one that was sent first is taken.

use std::collections::VecDeque;

use super::frame::Offer;
use super::request_id::RequestId;
use super::requests::Status;

/// What a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The sender's rank, or any.
    pub source: Option<u32>,
    /// The tag, as far as the mask goes.
    pub tag: u32,
    /// Bits of the tag that count.
    pub mask: u32,
}

impl Wanted {
    fn takes(&self, source: u32, tag: u32) -> bool {
        self.source.is_none_or(|wanted| wanted == source) && (tag ^ self.tag) & self.mask == 0
    }
}

/// A message that nobody waited for when it came.
#[derive(Debug)]
pub(super) struct Unexpected {
    /// When it came, among all.
    stamp: u64,
    pub(super) tag: u32,
    pub(super) what: What,
}

/// What is there of a message.
#[derive(Debug)]
pub(super) enum What {
    /// All of it.
    Whole(Vec<u8>),
    /// Its sender's word for it, under a number.
    Offered(u32, Offer),
}

impl What {
    pub(super) fn len(&self) -> u64 {
        match self {
            What::Whole(bytes) => bytes.len() as u64,
            What::Offered(_, offer) => offer.len,
        }
    }
}

#[derive(Debug)]
pub(super) struct Matching {
    posted: VecDeque<(RequestId, Wanted)>,
    /// By rank.
    unexpected: Vec<VecDeque<Unexpected>>,
    next_stamp: u64,
}

impl Matching {
    pub(super) fn new(size: u32) -> Matching {
        let unexpected = (0..size).map(|_| VecDeque::new()).collect();
        Matching { posted: VecDeque::new(), unexpected, next_stamp: 0 }
    }

    /// Posts a receive behind the others.
    pub(super) fn post(&mut self, request: RequestId, wanted: Wanted) {
        self.posted.push_back((request, wanted));
    }

    /// The first receive that takes a message; it is posted no more.
    pub(super) fn take_posted(&mut self, source: u32, tag: u32) -> Option<RequestId> {
        let at = self.posted.iter().position(|(_, wanted)| wanted.takes(source, tag))?;
        self.posted.remove(at).map(|(request, _)| request)
    }

    /// What a receive takes that is posted.
    pub(super) fn wanted(&self, request: RequestId) -> Option<Wanted> {
        self.posted.iter().find(|(posted, _)| *posted == request).map(|(_, wanted)| *wanted)
    }

    /// Posts it no more.
    pub(super) fn withdraw(&mut self, request: RequestId) {
        self.posted.retain(|(posted, _)| *posted != request);
    }

    /// Receives that only this rank could have sent to, or any rank.
    pub(super) fn posted_for(&self, rank: u32, also_any: bool) -> Vec<RequestId> {
        let fits = |wanted: &Wanted| wanted.source.map_or(also_any, |source| source == rank);
        self.posted.iter().filter(|(_, wanted)| fits(wanted)).map(|(request, _)| *request).collect()
    }

    /// Whether a receive is posted that only this rank could have sent to, or any rank.
    pub(super) fn is_posted_for(&self, request: RequestId, rank: u32, also_any: bool) -> bool {
        self.posted.iter().any(|(posted, wanted)| {
            *posted == request && wanted.source.map_or(also_any, |source| source == rank)
        })
    }

    /// Keeps a message that nobody waits for.
    pub(super) fn keep(&mut self, source: u32, tag: u32, what: What) {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        self.unexpected[source as usize].push_back(Unexpected { stamp, tag, what });
    }

    /// The message that a receive takes: of each rank its first that fits, and of those the one that came first.
    pub(super) fn find(&self, wanted: &Wanted) -> Option<Found> {
        let ranks = match wanted.source {
            Some(rank) => rank..rank + 1,
            None => 0..self.unexpected.len() as u32,
        };
        let first = |rank: u32| {
            let waiting = &self.unexpected[rank as usize];
            let at = waiting.iter().position(|one| wanted.takes(rank, one.tag))?;
            let Unexpected { stamp, tag, what } = &waiting[at];
            let status = Status { source: rank, tag: *tag, len: what.len() };
            Some((*stamp, Found { status, at }))
        };
        ranks.filter_map(first).min_by_key(|(stamp, _)| *stamp).map(|(_, found)| found)
    }

    /// Takes what was found.
    pub(super) fn take(&mut self, found: &Found) -> Option<Unexpected> {
        self.unexpected[found.status.source as usize].remove(found.at)
    }

    /// A rank's first message with a tag that fits.
    pub(super) fn find_if(&self, rank: u32, fits: impl Fn(u32) -> bool) -> Option<Status> {
        let one = self.unexpected[rank as usize].iter().find(|one| fits(one.tag))?;
        Some(Status { source: rank, tag: one.tag, len: one.what.len() })
    }

    /// The same, which waits no more.
    pub(super) fn take_if(&mut self, rank: u32, fits: impl Fn(u32) -> bool) -> Option<Unexpected> {
        let waiting = &mut self.unexpected[rank as usize];
        let at = waiting.iter().position(|one| fits(one.tag))?;
        waiting.remove(at)
    }

    /// Forgets the offers of a rank that is gone: nobody could get them. What came whole stays.
    pub(super) fn forget_offers(&mut self, rank: u32) {
        let waiting = &mut self.unexpected[rank as usize];
        waiting.retain(|one| matches!(one.what, What::Whole(_)));
    }

    /// Whether an offer under this number waits.
    pub(super) fn has_offer(&self, rank: u32, id: u32) -> bool {
        let is = |one: &Unexpected| matches!(one.what, What::Offered(other, _) if other == id);
        self.unexpected[rank as usize].iter().any(is)
    }

    /// Messages that wait, and their bytes.
    pub(super) fn waiting(&self) -> (usize, u64) {
        let all = self.unexpected.iter().flatten();
        all.fold((0, 0), |(count, bytes), one| match &one.what {
            What::Whole(whole) => (count + 1, bytes + whole.len() as u64),
            What::Offered(..) => (count + 1, bytes),
        })
    }
}

/// A message that waits: where.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) status: Status,
    at: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u32 = u32::MAX;

    fn of(source: Option<u32>, tag: u32, mask: u32) -> Wanted {
        Wanted { source, tag, mask }
    }

    fn take(matching: &mut Matching, wanted: Wanted) -> Option<(u32, u32)> {
        let found = matching.find(&wanted)?;
        matching.take(&found);
        Some((found.status.source, found.status.tag))
    }

    #[test]
    fn any_takes_what_came_first_and_a_rank_its_own() {
        let mut matching = Matching::new(3);
        for (source, tag) in [(2, 5), (1, 5), (1, 6), (2, 6)] {
            matching.keep(source, tag, What::Whole(vec![0; 4]));
        }
        assert_eq!(matching.waiting(), (4, 16));
        assert_eq!(take(&mut matching, of(None, 6, ALL)), Some((1, 6)));
        assert_eq!(take(&mut matching, of(Some(1), 0, 0)), Some((1, 5)));
        assert_eq!(take(&mut matching, of(None, 0, 0)), Some((2, 5)));
        assert_eq!(take(&mut matching, of(Some(0), 0, 0)), None);
        assert_eq!(take(&mut matching, of(None, 0, 0)), Some((2, 6)));
        assert_eq!(matching.waiting(), (0, 0));
    }

    #[test]
    fn who_posted_first_is_served_first() {
        let mut requests = super::super::requests::Requests::<()>::default();
        let mut matching = Matching::new(2);
        let mut post = |wanted| {
            let request = requests.add(super::super::requests::Request {
                phase: super::super::requests::Phase::Posted,
                memory: super::super::memory::Held::Lent,
                status: Status { source: 0, tag: 0, len: 0 },
                to: 0,
                room: 0,
                abandoned: false,
            });
            matching.post(request, wanted);
            request
        };
        let exact = post(of(Some(1), 7, ALL));
        let any = post(of(None, 0, 1 << 31));
        let gone = post(of(None, 0, 1 << 31));
        assert_eq!(matching.posted_for(1, false), [exact]);
        assert_eq!(matching.posted_for(1, true), [exact, any, gone]);
        matching.withdraw(gone);
        assert_eq!(matching.take_posted(1, 1 << 31), None);
        assert_eq!(matching.take_posted(1, 7), Some(exact));
        assert_eq!(matching.take_posted(1, 7), Some(any));
        assert_eq!(matching.take_posted(1, 7), None);
    }
}
