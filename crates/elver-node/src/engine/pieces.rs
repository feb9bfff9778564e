//! Memory that is made piece by piece, since the system takes long to set a large one aside and to clear it: that of
//! regions, which is mapped, and files of sessions that are made ahead.

use std::io;
use std::os::fd::AsFd;

use elver_portal::memfd::{self, HUGE_PAGE, Pages};
use elver_soft::SoftMemory;

use super::account::Account;
use super::notice::Notice;
use super::orders::{Filed, Job, Made, Order, PAGE, Piece, SetFile};
use super::room::Growing;

/// Bytes that are made at a turn: whole huge pages.
pub(super) const TURN_BYTES: u64 = 16 << 20;

/// What was ordered, and is being made.
pub(super) enum Begun {
    Region(Order, Region),
    File(SetFile, Growing),
}

/// What a turn comes to.
pub(super) enum Turn {
    /// There is more to be made.
    Next(Begun),
    /// It is there, or is not to be had.
    Last(Notice),
}

impl Begun {
    /// Makes the first of what was ordered.
    pub(super) fn begin(job: Job) -> Turn {
        let begun = match job {
            Job::Make(order) => match Region::begin(&order) {
                Ok(region) => Begun::Region(order, region),
                Err(error) => return Turn::Last(made(order, Err(error))),
            },
            Job::File(order) => {
                let place = (Pages::Small, None);
                match Growing::begin("elver-heirs", order.bytes, place, order.held) {
                    Ok(file) => Begun::File(order, file),
                    Err(error) => return Turn::Last(filed(order, Err(error))),
                }
            }
        };
        begun.go_on()
    }

    pub(super) fn account(&self) -> Account {
        match self {
            Begun::Region(Order { account, .. }, _) | Begun::File(SetFile { account, .. }, _) => {
                *account
            }
        }
    }

    /// Makes some more of it.
    pub(super) fn go_on(self) -> Turn {
        match self {
            Begun::Region(order, mut region) => match region.go_on(&order) {
                Ok(false) => Turn::Next(Begun::Region(order, region)),
                Ok(true) => Turn::Last(made(order, region.end(&order))),
                Err(error) => Turn::Last(made(order, Err(error))),
            },
            Begun::File(order, mut file) => match file.go_on(TURN_BYTES) {
                Ok(done) if done < order.bytes => Turn::Next(Begun::File(order, file)),
                Ok(_) => Turn::Last(filed(order, Ok(file))),
                Err(error) => Turn::Last(filed(order, Err(error))),
            },
        }
    }

    /// Gives back what there is of it, for nobody wants it any more. It takes as long as it is large.
    pub(super) fn give_up(self) -> Notice {
        let unwanted = io::Error::other("its session wants it no more");
        match self {
            Begun::Region(order, region) => {
                drop(region);
                made(order, Err(unwanted))
            }
            Begun::File(order, file) => {
                drop(file);
                filed(order, Err(unwanted))
            }
        }
    }
}

fn made(order: Order, result: io::Result<Piece>) -> Notice {
    Notice::Made(Made { order, result })
}

fn filed(order: SetFile, result: io::Result<Growing>) -> Notice {
    Notice::Filed(Filed { order, result: result.map(|file| file.end().0) })
}

/// Memory of a region that is being made.
pub(super) struct Region {
    file: Growing,
    memory: SoftMemory,
    bytes: u64,
    pages: Pages,
}

impl Region {
    fn begin(order: &Order) -> io::Result<Region> {
        if order.huge
            && let Ok(region) = Region::of(order, Pages::Huge)
        {
            return Ok(region);
        }
        Region::of(order, Pages::Small)
    }

    /// All of the file is mapped, so that all of it can be discarded.
    fn of(order: &Order, pages: Pages) -> io::Result<Region> {
        let (bytes, file) = begin(order, pages)?;
        let memory = SoftMemory::map_file_bare(file.as_fd(), bytes).map_err(io::Error::other)?;
        Ok(Region { file, memory, bytes, pages })
    }

    /// Makes some more of it; whether that is all.
    fn go_on(&mut self, order: &Order) -> io::Result<bool> {
        let before = self.file.done();
        match self.file.go_on(TURN_BYTES) {
            Ok(done) => {
                self.memory.populate(before, done - before);
                Ok(done == self.bytes)
            }
            Err(_) if self.pages == Pages::Huge => {
                *self = Region::of(order, Pages::Small)?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn end(self, order: &Order) -> io::Result<Piece> {
        finish(self.file, self.memory, self.bytes, order)
    }
}

impl Piece {
    /// Makes a small one of small pages at once.
    pub(super) fn make(order: &Order) -> io::Result<Piece> {
        let (bytes, mut file) = begin(order, Pages::Small)?;
        file.go_on(bytes)?;
        let memory = SoftMemory::map_file(file.as_fd(), bytes).map_err(io::Error::other)?;
        finish(file, memory, bytes, order)
    }
}

/// A file for what was ordered, and its bytes.
fn begin(order: &Order, pages: Pages) -> io::Result<(u64, Growing)> {
    let page = match pages {
        Pages::Small => PAGE,
        Pages::Huge => HUGE_PAGE,
    };
    let bytes =
        order.len.max(1).checked_next_multiple_of(page).ok_or(io::ErrorKind::InvalidInput)?;
    Ok((bytes, Growing::begin("elver-mr", bytes, (pages, order.near), order.held)?))
}

fn finish(file: Growing, memory: SoftMemory, bytes: u64, order: &Order) -> io::Result<Piece> {
    let memory = memory.part(0, order.len.max(1)).map_err(io::Error::other)?;
    // While nobody else has it: who has can hold the lock that this takes.
    memfd::close_to_others(file.as_fd())?;
    let (file, is_near) = file.end();
    Ok(Piece { file, memory, bytes, is_near })
}

#[cfg(test)]
mod tests {
    use elver_verbs::AccessFlags;

    use super::*;

    fn order(len: u64, huge: bool) -> Order {
        let account = Account { uid: 1, space: 0, is_root: false };
        let (slot, serial, request, addr) = (0, 0, 0, 0);
        let (access, near, held) = (AccessFlags::empty(), None, None);
        Order { slot, serial, request, account, len, addr, access, huge, near, held }
    }

    #[test]
    fn more_memory_than_there_is_is_refused() {
        for len in [super::super::room::room().unwrap() + (64 << 30), u64::MAX - 1, u64::MAX] {
            assert!(Piece::make(&order(len, false)).is_err());
            for huge in [false, true] {
                let Turn::Last(Notice::Made(Made { result, .. })) =
                    Begun::begin(Job::Make(order(len, huge)))
                else {
                    panic!("{len} bytes")
                };
                assert!(result.is_err());
            }
        }
        let piece = Piece::make(&order(5_000, false)).unwrap();
        assert_eq!((piece.bytes, elver_verbs::Memory::size(&piece.memory)), (8_192, 5_000));
    }

    #[test]
    fn what_is_made_in_turns_is_there_whole_in_the_end_and_not_before() {
        const BYTES: u64 = 2 * TURN_BYTES + PAGE;
        let there = |file: &dyn Fn() -> rustix::fs::Stat| file().st_blocks as u64 * 512;
        // Without huge pages, which few machines have set aside, it is of small ones.
        for huge in [false, true] {
            let mut turn = Begun::begin(Job::Make(order(BYTES - 1, huge)));
            let mut turns = 1;
            let piece = loop {
                match turn {
                    Turn::Next(begun) => {
                        let Begun::Region(_, region) = &begun else { panic!("a file") };
                        let stat = || rustix::fs::fstat(&region.file).unwrap();
                        assert!(there(&stat) <= turns * TURN_BYTES);
                        turn = begun.go_on();
                        turns += 1;
                    }
                    Turn::Last(Notice::Made(Made { result, .. })) => break result.unwrap(),
                    Turn::Last(_) => panic!("a file"),
                }
            };
            assert!(turns >= 3);
            assert_eq!(there(&|| rustix::fs::fstat(&piece.file).unwrap()), piece.bytes);
            assert_eq!(elver_verbs::Memory::size(&piece.memory), BYTES - 1);
        }
    }
}
