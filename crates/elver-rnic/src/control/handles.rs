//! Address handles.

use elver_verbs::{AddressVector, Ah, Memory, Pd, VerbsError};

use crate::Rnic;
use crate::hw::AddressHandle;
use crate::route::Whither;

impl<M: Memory> Rnic<M> {
    /// Creates an address handle of a host.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such domain or no such entry of the GID table;
    /// [`VerbsError::InvalidArgument`] if no packet can go there from that address;
    /// [`VerbsError::OutOfRange`] for a flow label of more than 20 bits; [`VerbsError::Limit`] if there are
    /// `max_ah` of them, or `max_paths` paths are held.
    pub fn create_ah(&mut self, pd: Pd, av: AddressVector) -> Result<Ah, VerbsError> {
        self.handle_to(pd, av, Whither::Host)
    }

    /// Creates an address handle of a multicast group, which datagrams to QP 0xffffff are sent with.
    ///
    /// # Errors
    ///
    /// As [`Rnic::create_ah`]; [`VerbsError::InvalidArgument`] also for what is no group.
    pub fn create_multicast_ah(&mut self, pd: Pd, av: AddressVector) -> Result<Ah, VerbsError> {
        self.handle_to(pd, av, Whither::Group)
    }

    fn handle_to(&mut self, pd: Pd, av: AddressVector, whither: Whither) -> Result<Ah, VerbsError> {
        let hw = &mut self.hw;
        hw.pds.require(pd.0)?;
        let route = hw.resolve(&av, whither)?;
        match hw.ahs.insert(&mut hw.rng, |_| AddressHandle { pd: pd.0, av, route }) {
            Ok(id) => {
                hw.use_pd(pd.0)?;
                Ok(Ah(id))
            }
            Err(error) => {
                hw.paths.close(route.path);
                Err(error)
            }
        }
    }

    /// The address vector that an address handle was created with.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such address handle.
    pub fn query_ah(&self, ah: Ah) -> Result<AddressVector, VerbsError> {
        Ok(self.hw.ahs.require(ah.0)?.av)
    }

    /// Destroys an address handle.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidHandle`] if there is no such address handle.
    pub fn destroy_ah(&mut self, ah: Ah) -> Result<(), VerbsError> {
        let AddressHandle { pd, route, .. } = *self.hw.ahs.require(ah.0)?;
        self.hw.ahs.remove(ah.0);
        self.hw.release_pd(pd);
        self.hw.paths.close(route.path);
        Ok(())
    }

    /// How many address handles there are.
    pub fn ah_count(&self) -> u32 {
        self.hw.ahs.len()
    }

    /// What address handles, connected QPs and streams of DCIs hold of paths: each one. A path is
    /// what the device knows of an address; one that nothing holds gives way when room is needed.
    pub fn paths_held(&self) -> u32 {
        self.hw.paths.users()
    }
}
