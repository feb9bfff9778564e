//! What a process has of XRC: domains of files, queues, and targets with the objects that stand for each.

use std::collections::{HashMap, HashSet};
use std::ffi::c_int;

use elver_verbs::{Qp as Handle, Srq as SrqHandle, Xrcd as Domain};

use crate::layout::{Context, Qp};
use crate::told::Told;

/// The file that stands for a domain: its device and its number there.
pub(crate) type File = (u64, u64);

/// What the engine knows of XRC.
#[derive(Default)]
pub(crate) struct Xrc {
    /// Domains of files, and how often each is open.
    files: HashMap<File, (Domain, u32)>,
    /// The objects that stand for domains, by their addresses, and whose they are.
    opened: HashMap<usize, (Told, Domain, Option<File>)>,
    srqs: HashSet<SrqHandle>,
    /// Targets: their domains, and the objects that stand for each.
    targets: HashMap<Handle, (Domain, Vec<Told>)>,
}

/// What a program asks for who opens a domain of a file (`O_EXCL` and `O_CREAT`).
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) exclusive: bool,
    pub(crate) create: bool,
}

impl Xrc {
    /// The domain of a file, which is open once more; or a new one, which `make` makes. Without a file each is new.
    pub(crate) fn open_domain(
        &mut self,
        file: Option<File>,
        wanted: Wanted,
        make: impl FnOnce() -> Result<Domain, c_int>,
    ) -> Result<Domain, c_int> {
        let Some(file) = file else { return make() };
        // As the kernel says it.
        match self.files.get_mut(&file) {
            Some(_) if wanted.exclusive => Err(libc::EINVAL),
            Some((domain, count)) => {
                *count += 1;
                Ok(*domain)
            }
            None if !wanted.create => Err(libc::EAGAIN),
            None => {
                let domain = make()?;
                self.files.insert(file, (domain, 1));
                Ok(domain)
            }
        }
    }

    /// A domain is closed once; `close` closes it for good if it is not open elsewhere.
    pub(crate) fn close_domain(
        &mut self,
        file: Option<File>,
        close: impl FnOnce() -> Result<(), c_int>,
    ) -> Result<(), c_int> {
        let Some(file) = file else { return close() };
        match self.files.get_mut(&file) {
            Some((_, count)) if *count > 1 => *count -= 1,
            _ => {
                close()?;
                self.files.remove(&file);
            }
        }
        Ok(())
    }

    /// An object stands for a domain.
    pub(crate) fn opened(&mut self, told: Told, domain: Domain, file: Option<File>) {
        self.opened.insert(told.element.addr(), (told, domain, file));
    }

    /// It does no more.
    pub(crate) fn closed(&mut self, element: usize) {
        self.opened.remove(&element);
    }

    /// What the objects of a context stand for.
    pub(crate) fn opened_by(&self, context: *mut Context) -> Vec<(usize, Domain, Option<File>)> {
        let its = self.opened.iter().filter(|(_, (told, ..))| told.context == context);
        its.map(|(element, (_, domain, file))| (*element, *domain, *file)).collect()
    }

    /// A target was made in a domain.
    pub(crate) fn add_target(&mut self, target: Handle, domain: Domain) {
        self.targets.insert(target, (domain, Vec::new()));
    }

    /// Whether there is a target of this name in the domain.
    pub(crate) fn has_target(&self, target: Handle, domain: Domain) -> bool {
        self.targets.get(&target).is_some_and(|(of, _)| *of == domain)
    }

    /// An object stands for a target.
    pub(crate) fn add_object(&mut self, target: Handle, told: Told) {
        if let Some((_, objects)) = self.targets.get_mut(&target) {
            objects.push(told);
        }
    }

    /// The objects that stand for a QP, if it is a target: all are told of its events.
    pub(crate) fn objects(&self, qp: Handle) -> &[Told] {
        self.targets.get(&qp).map_or(&[], |(_, objects)| objects)
    }

    /// The objects of a context that stand for targets.
    pub(crate) fn objects_of(&self, context: *mut Context) -> Vec<(Handle, Told)> {
        let all = self
            .targets
            .iter()
            .flat_map(|(target, (_, objects))| objects.iter().map(|object| (*target, *object)));
        all.filter(|(_, object)| object.context == context).collect()
    }

    pub(crate) fn add_srq(&mut self, srq: SrqHandle) {
        self.srqs.insert(srq);
    }

    pub(crate) fn remove_srq(&mut self, srq: SrqHandle) {
        self.srqs.remove(&srq);
    }

    /// Whether other objects stand for the same target.
    pub(crate) fn is_shared(&self, qp: Handle) -> bool {
        self.targets.get(&qp).is_some_and(|(_, objects)| objects.len() > 1)
    }

    /// An object that stands for a target goes; tells who hears of its events then.
    pub(crate) fn close(&mut self, qp: Handle, object: *mut Qp) -> Option<Told> {
        let (_, objects) = self.targets.get_mut(&qp)?;
        objects.retain(|told| told.element != object.cast());
        let first = objects.first().copied();
        if first.is_none() {
            self.targets.remove(&qp);
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn all_who_opened_a_target_are_told_until_they_close_it() {
        let mut xrc = Xrc::default();
        let (target, domain) = (Handle(7), Domain(3));
        assert!(xrc.objects(target).is_empty());
        xrc.add_target(target, domain);
        let objects = [8, 16].map(ptr::without_provenance_mut::<Qp>);
        for object in objects {
            let told = Told { context: ptr::null_mut(), element: object.cast() };
            xrc.add_object(target, told);
        }
        let told = |xrc: &Xrc| xrc.objects(target).iter().map(|it| it.element).collect::<Vec<_>>();
        assert_eq!(told(&xrc), objects.map(|object| object.cast()));
        assert!(xrc.is_shared(target) && xrc.has_target(target, domain));
        assert!(xrc.close(target, objects[0]).is_some_and(|it| it.element == objects[1].cast()));
        assert_eq!(told(&xrc), [objects[1].cast()]);
        assert!(xrc.close(target, objects[1]).is_none());
        assert!(!xrc.has_target(target, domain));
    }
}
