use core::num::NonZeroU16;
use core::ops::RangeInclusive;

use crate::VqpId;

use elver_random::Rng;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// The ports of a node, and the VQP that is bound to each.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    vqps: HashMap<u16, (VqpId, NonZeroU16), FxBuildHasher>,
    /// The number of the last binding.
    last: Option<NonZeroU16>,
}

impl Ports {
    /// Those that `qbind` takes from when it is asked for any.
    pub(crate) const FREE: RangeInclusive<u16> = 49_152..=65_535;

    /// The VQP that is bound to a port.
    pub(crate) fn bound_to(&self, port: u16) -> Option<VqpId> {
        self.vqps.get(&port).map(|(vqp, _)| *vqp)
    }

    /// A number that tells the binding of a port from those before it; none if nobody is bound to it.
    pub(crate) fn binding_of(&self, port: u16) -> Option<NonZeroU16> {
        self.vqps.get(&port).map(|(_, number)| *number)
    }

    /// Binds a VQP to a port that nobody is bound to.
    pub(crate) fn bind(&mut self, port: u16, vqp: VqpId) {
        let next = self.last.and_then(|last| last.checked_add(1)).unwrap_or(NonZeroU16::MIN);
        self.last = Some(next);
        if self.vqps.insert(port, (vqp, next)).is_some() {
            bug!("a port is bound twice");
        }
    }

    /// A VQP goes that was bound to it.
    pub(crate) fn release(&mut self, port: u16) {
        if self.vqps.remove(&port).is_none() {
            bug!("a port is released that nobody was bound to");
        }
    }

    /// A port that nobody is bound to, from a random place on.
    pub(crate) fn any_free(&self, rng: &mut Rng) -> Option<u16> {
        let count = Ports::FREE.len() as u32;
        let start = rng.next_u32() % count;
        let mut ports = (0..count).map(|n| Ports::FREE.start() + ((start + n) % count) as u16);
        ports.find(|port| !self.vqps.contains_key(port))
    }

    /// How many are bound.
    pub(crate) fn len(&self) -> usize {
        self.vqps.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_one_vqp_until_that_goes() {
        let (mut ports, mut rng) = (Ports::default(), Rng::new(1));
        let any = ports.any_free(&mut rng).unwrap();
        assert!(Ports::FREE.contains(&any));
        ports.bind(any, VqpId(5));
        let first = ports.binding_of(any);
        assert_eq!(
            (ports.bound_to(any), ports.bound_to(7), ports.len()),
            (Some(VqpId(5)), None, 1)
        );
        ports.release(any);
        assert_eq!((ports.bound_to(any), ports.len()), (None, 0));
        assert_eq!((ports.binding_of(any), ports.binding_of(7)), (None, None));
        ports.bind(any, VqpId(5));
        assert_ne!(ports.binding_of(any), first);
    }

    #[test]
    fn all_free_ports_are_found() {
        let (mut ports, mut rng) = (Ports::default(), Rng::new(2));
        for _ in Ports::FREE {
            let port = ports.any_free(&mut rng).unwrap();
            ports.bind(port, VqpId(1));
        }
        assert_eq!(ports.any_free(&mut rng), None);
    }
}
