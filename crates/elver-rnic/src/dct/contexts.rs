//! The contexts of a DCT: one for each initiator, in the order in which they were heard of.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::{Index, IndexMut};

use elver_verbs::{MaybeSlot, Time};
use elver_wire::{Flow, Qpn};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::proof::Proof;
use crate::responder::Responder;

#[derive(Debug)]
pub(super) struct Contexts {
    by_initiator: HashMap<Initiator, u32, FxBuildHasher>,
    /// Those that were given up are among them: they stay until their places are taken.
    slots: Vec<Context>,
    free: Vec<u32>,
    /// Most and least recently heard of.
    newest: MaybeSlot,
    oldest: MaybeSlot,
}

/// Who opened a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Initiator {
    pub(super) address: IpAddr,
    pub(super) qpn: Qpn,
    pub(super) stream: u16,
}

/// What is held for an initiator.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) initiator: Initiator,
    pub(super) session: u32,
    /// From us to the initiator.
    pub(super) flow: Flow,
    pub(super) traffic_class: u8,
    pub(super) responder: Responder,
    /// What the initiator proved.
    pub(super) proof: Proof,
    /// He was asked to: until he does, nothing is executed.
    pub(super) asked: bool,
    /// In time awake.
    pub(super) heard: Time,
    pub(super) ready: bool,
    /// It stands among the unfinished; so does whatever takes its place.
    pub(super) listed: bool,
    newer: MaybeSlot,
    older: MaybeSlot,
}

impl Contexts {
    pub(super) fn new() -> Contexts {
        Contexts {
            by_initiator: HashMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            newest: MaybeSlot::NONE,
            oldest: MaybeSlot::NONE,
        }
    }

    /// How many are held.
    pub(super) fn len(&self) -> usize {
        self.by_initiator.len()
    }

    /// Whether there was ever a context of this id.
    pub(super) fn has(&self, id: u32) -> bool {
        (id as usize) < self.slots.len()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Context> {
        self.slots.get_mut(id as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Context> {
        self.slots.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Context> {
        self.slots.iter_mut()
    }

    pub(super) fn of(&self, initiator: &Initiator) -> Option<u32> {
        self.by_initiator.get(initiator).copied()
    }

    /// As [`Contexts::of`], and the shortest way to the one that was heard of last: packets come in rows.
    #[inline]
    pub(super) fn find(&self, initiator: &Initiator) -> Option<u32> {
        match self.slots.get(self.newest.index()) {
            Some(context) if context.initiator == *initiator => self.newest.get(),
            _ => self.of(initiator),
        }
    }

    /// The one that was silent longest.
    pub(super) fn oldest(&self) -> Option<u32> {
        self.oldest.get()
    }

    /// Takes a new one, the one that was heard of last.
    pub(super) fn insert(&mut self, mut context: Context) -> u32 {
        let initiator = context.initiator;
        context.older = self.newest;
        let id = match self.free.pop() {
            Some(id) => {
                // It may stand among the unfinished still.
                context.listed = self.slots[id as usize].listed;
                self.slots[id as usize] = context;
                id
            }
            None => {
                self.slots.push(context);
                (self.slots.len() - 1) as u32
            }
        };
        match self.newest.get() {
            None => self.oldest = id.into(),
            Some(newest) => self.slots[newest as usize].newer = id.into(),
        }
        self.newest = id.into();
        self.by_initiator.insert(initiator, id);
        id
    }

    /// Gives one up.
    pub(super) fn remove(&mut self, id: u32) {
        let initiator = self.slots[id as usize].initiator;
        self.unlink(id);
        self.by_initiator.remove(&initiator);
        self.free.push(id);
    }

    /// One was heard of.
    pub(super) fn touch(&mut self, id: u32, awake: Time) {
        self.slots[id as usize].heard = awake;
        if self.newest == id.into() {
            return;
        }
        self.unlink(id);
        let newest = self.newest;
        let context = &mut self.slots[id as usize];
        context.newer = MaybeSlot::NONE;
        context.older = newest;
        match newest.get() {
            None => self.oldest = id.into(),
            Some(newest) => self.slots[newest as usize].newer = id.into(),
        }
        self.newest = id.into();
    }

    fn unlink(&mut self, id: u32) {
        let (newer, older) = {
            let context = &self.slots[id as usize];
            (context.newer, context.older)
        };
        match newer.get() {
            None => self.newest = older,
            Some(newer) => self.slots[newer as usize].older = older,
        }
        match older.get() {
            None => self.oldest = newer,
            Some(older) => self.slots[older as usize].newer = newer,
        }
    }
}

impl Index<u32> for Contexts {
    type Output = Context;

    #[inline]
    fn index(&self, id: u32) -> &Context {
        &self.slots[id as usize]
    }
}

impl IndexMut<u32> for Contexts {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Context {
        &mut self.slots[id as usize]
    }
}

impl Context {
    /// `responder` answers the initiator, of whom a packet came with this session and proof.
    pub(super) fn new(
        initiator: Initiator,
        session: u32,
        (flow, traffic_class): (Flow, u8),
        responder: Responder,
        proof: Proof,
        heard: Time,
    ) -> Context {
        Context {
            initiator,
            session,
            flow,
            traffic_class,
            responder,
            proof,
            asked: false,
            heard,
            ready: false,
            listed: false,
            newer: MaybeSlot::NONE,
            older: MaybeSlot::NONE,
        }
    }

    /// Whether a packet of this session is taken as it comes.
    #[inline]
    pub(super) fn is_proved_in(&self, session: u32) -> bool {
        self.session == session && self.proof == Proof::Fresh
    }
}
