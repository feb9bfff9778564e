//! What another process tells, as any bytes that it likes. Never a panic or an endless loop; what is believed lies within what
//! it names.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use elver_verbs::{AccessFlags, RemoteAddr};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags,
    SocketType, sendmsg, shutdown, socketpair,
};
use rustix::process::getpid;

use super::lane::{self, Lane, LaneView, Sent};
use super::peer::{hear, probe};
use super::table::{self, MAGIC, Name, View};
use super::told::{Door, Place};

/// Bytes of a step: what to do, where, with what.
const STEP: usize = 11;
const STEPS_MAX: usize = 512;
/// Of a lane's file: how far it is sent, how far the other's is taken, and the words.
const SENT: u64 = 0;
const TAKEN: u64 = 64;
const WORDS: u64 = 128;
/// As long as any packet.
const PACKET: usize = 4_200;
/// Of a table's file: the entries of QPs, and of regions, each of eight words.
const QPS: u64 = 192;
const REGIONS: u64 = QPS + 64 * (1 << 12);

/// A file that can become no shorter, as a process makes that writes what it likes.
fn file(size: usize) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("fuzzed", flags).expect("a file");
    ftruncate(&file, size as u64).expect("room");
    fcntl_add_seals(&file, SealFlags::SHRINK).expect("a seal");
    File::from(file)
}

fn put(file: &File, at: u64, word: u64) {
    file.write_all_at(&word.to_ne_bytes(), at).expect("it is as long");
}

fn copy(file: &File) -> OwnedFd {
    file.try_clone().expect("a descriptor").into()
}

fn steps(bytes: &[u8]) -> impl Iterator<Item = (u8, u64, u64)> {
    bytes.as_chunks::<STEP>().0.iter().take(STEPS_MAX).map(|[act, low, high, word @ ..]| {
        (*act, u64::from(u16::from_le_bytes([*low, *high])), u64::from_le_bytes(*word))
    })
}

/// A lane and the file of its peer, which hold whatever the peer writes: packets are taken from it, and sent as far as it
/// says that it has taken them.
pub fn lane(bytes: &[u8]) {
    let hostile = file(size_of::<lane::Layout>());
    let words = (size_of::<lane::Layout>() as u64 - WORDS) / 8;
    let view = LaneView::new(copy(&hostile)).expect("a lane");
    let (own, own_file) = Lane::new().expect("a lane");
    let own_view = LaneView::new(own_file).expect("a lane");
    // Before the words come round.
    let mut taken = words - u64::from(bytes.first().copied().unwrap_or_default());
    let mut buf = vec![0; PACKET];
    let (mut sent, mut seen, mut told) = (Sent::default(), 0, 0);
    for (act, at, word) in steps(bytes) {
        match act % 8 {
            0 | 1 => {
                told = if act & 0x80 == 0 { taken + (word & 0xfff) } else { word };
                put(&hostile, SENT, told);
            }
            2 | 3 => {
                let at = if act & 0x80 == 0 { (taken + at % 64) % words } else { at % words };
                // A packet's, or anything.
                let word = if act & 0x40 == 0 { word & 0xff_0fff } else { word };
                put(&hostile, WORDS + 8 * at, word);
            }
            4 | 5 => {
                let before = taken;
                let there = told.wrapping_sub(before);
                assert_eq!(view.has_more(taken), there > 0);
                match view.take(&mut taken, &mut buf) {
                    Ok(None) => assert_eq!(taken, told),
                    Ok(Some((length, _))) => {
                        assert!(length <= PACKET && there <= words);
                        assert!(taken > before && taken - before <= there, "no more than was sent");
                        let start = (taken % words).checked_sub(length.div_ceil(8) as u64);
                        let start = start.unwrap_or(words - length.div_ceil(8) as u64);
                        let mut wanted = vec![0; length];
                        hostile
                            .read_exact_at(&mut wanted, WORDS + 8 * start)
                            .expect("it lies inside");
                        assert_eq!(buf[..length], wanted);
                    }
                    Err(_) => assert!(taken - before <= words),
                }
            }
            6 => {
                let word = if act & 0x80 == 0 { seen + (word & 0x7ff) } else { word };
                put(&hostile, TAKEN, word);
            }
            _ => {
                let packet = vec![act; at as usize % PACKET];
                if own.send(&mut sent, &view, act, &packet).is_ok() {
                    let found = own_view.take(&mut seen, &mut buf).expect("a packet");
                    assert_eq!(found, Some((packet.len(), act)));
                    assert_eq!(buf[..packet.len()], packet);
                }
            }
        }
    }
}

/// A table that holds whatever its process writes: what it says of a QP and of a region, and what comes of that.
pub fn table(bytes: &[u8]) {
    let hostile = file(size_of::<table::Layout>());
    put(&hostile, 0, MAGIC);
    let view = View::new(copy(&hostile)).expect("a table");
    let own = IpAddr::from([127, 64, 0, 9]);
    let access = AccessFlags::REMOTE_WRITE;
    for (act, at, word) in steps(bytes) {
        let (door, region) = (Name::Qp(at as u32), Name::Region((at as u32) << 8 | 7));
        let (start, number) = match act & 1 {
            0 => (QPS + 64 * (at % (1 << 12)), at),
            _ => (REGIONS + 64 * (at % (1 << 14)), at << 8 | 7),
        };
        match act >> 1 & 7 {
            // What belongs there, so that what is behind it is looked at.
            0 => {
                put(&hostile, start + 8, 1 << 32 | number);
                put(&hostile, start + 16, u64::from(access.bits()) << 32 | 3);
            }
            1 => put(&hostile, 64 + 64 * (word & 1), word),
            nth => put(&hostile, start + 8 * u64::from(nth), word),
        }
        if act & 0x40 != 0 {
            // It can be read again.
            put(&hostile, start, word & !1);
        }
        let (_, _) = (view.sleeps(), view.epoch());
        let pd = view.look_up(door).and_then(|words| Door::admits(&words, own, at as u32, access));
        let Some(place) = view.look_up(region).map(|words| Place::of((at as u32) << 8 | 7, &words))
        else {
            continue;
        };
        let (offset, length) = (word & 0xff_ffff, at);
        let addr = place.reach.base.wrapping_add(offset);
        let remote = RemoteAddr { addr, rkey: place.reach.rkey };
        for pd in pd.into_iter().chain([place.reach.pd]) {
            if let Some(first) = place.grants(pd, remote, length, access) {
                assert!(place.reach.access.contains(access) && place.reach.pd == pd);
                let end = place.address.checked_add(place.reach.length);
                assert!(first >= place.address && end.is_none_or(|end| first + length <= end));
            }
        }
    }
}

/// A descriptor of some kind.
fn some_file(kind: u8) -> OwnedFd {
    match kind % 8 {
        0 | 1 => {
            let table = file(size_of::<table::Layout>());
            put(&table, 0, MAGIC);
            table.into()
        }
        2 => file(size_of::<table::Layout>()).into(),
        3 | 4 => file(size_of::<lane::Layout>()).into(),
        5 => file(64).into(),
        6 => {
            // As long as it is to be, and may become shorter.
            let file = memfd_create("fuzzed", MemfdFlags::CLOEXEC).expect("a file");
            ftruncate(&file, size_of::<lane::Layout>() as u64).expect("room");
            file
        }
        _ => eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"),
    }
}

/// A greeting: the first byte says with how many descriptors, the next ones of which kind; what follows is sent.
pub fn greeting(bytes: &[u8]) {
    let Some((kinds, said)) = bytes.split_first_chunk::<6>() else { return };
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (here, there) = socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("sockets");
    let files: Vec<_> =
        kinds[1..].iter().take(usize::from(kinds[0] % 6)).map(|kind| some_file(*kind)).collect();
    let all: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !all.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&all));
    }
    // The version that is asked for, or any.
    let mut said = said.to_vec();
    if kinds[0] & 0x80 == 0 && said.len() >= 8 {
        said[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    }
    sendmsg(&there, &[IoSlice::new(&said)], &mut control, SendFlags::NOSIGNAL).expect("it is sent");
    shutdown(&there, Shutdown::Both).expect("it is over");
    if let Ok(greeting) = hear(&here, getpid()) {
        assert!(said.len() == 32 && all.len() == 3, "the whole of it, with its files");
        assert!(!greeting.view.sleeps() && !greeting.lane.has_more(0));
        let _ = probe(getpid(), greeting.table_at);
    }
}
