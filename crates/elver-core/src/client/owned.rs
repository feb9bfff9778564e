//! Clients, and the VQPs that are theirs.

use elver_verbs::Device;

use crate::client::Client;
use crate::client::all::Clients;
use crate::vqp::Vqp;
use crate::{ClientId, Core, CoreError, VqpId};

impl Clients {
    /// A client that is not closed.
    pub(crate) fn open_client(&mut self, client: ClientId) -> Result<&mut Client, CoreError> {
        let entry = self.all.get_mut(client).filter(|entry| !entry.closed);
        entry.ok_or(CoreError::NoSuchClient(client))
    }

    /// Lets go of a closed client of which nothing is left.
    pub(crate) fn forget_client(&mut self, id: ClientId) {
        // It may have gone with its last region.
        let Some(client) = self.all.get(id) else { return };
        let has_gone = client.vqps.is_empty() && client.zombies == 0 && client.mrs == 0;
        if client.closed && has_gone {
            self.all.remove(id);
        }
    }
}

impl<D: Device> Core<D> {
    /// A VQP of a client's.
    pub(crate) fn own_vqp(&mut self, client: ClientId, vqp: VqpId) -> Result<&mut Vqp, CoreError> {
        let entry = self.vqps.get_mut(vqp);
        let own = entry.filter(|entry| entry.is_of(client));
        own.map(|entry| &mut **entry).ok_or(CoreError::NoSuchVqp(vqp))
    }
}
