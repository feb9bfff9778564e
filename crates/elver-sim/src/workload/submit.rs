//! How WRs are noted in the model and handed to a device.

use elver_verbs::{Payload, SendWr};

use super::Prepared;
use crate::model::{EndpointId, LaneId, Op, Violation};
use crate::trace::Event;
use crate::world::World;

impl World {
    /// A place is kept for the WR that ends a lane.
    pub(super) fn has_room(&self, lane: LaneId) -> bool {
        let endpoint = &self.model.endpoints[self.model.lanes[lane].endpoint];
        let lanes = endpoint.lanes.iter();
        let outstanding: usize = lanes.map(|lane| self.model.lanes[*lane].outstanding.len()).sum();
        outstanding + endpoint.lanes.len() < endpoint.setup.max_send_wr as usize
    }

    pub(super) fn note(&mut self, op: Op) {
        let (opcode, len, planted) = (op.opcode, op.len, op.planted.is_some());
        let op = self.model.post(op);
        let source = self.model.source(op);
        let (host, qpn) = (source.host, source.qpn);
        self.trace.add(self.now, Event::Posted { host, qpn, op, opcode, len, planted });
    }

    pub(crate) fn submit(
        &mut self,
        id: EndpointId,
        prepared: &[Prepared],
    ) -> Result<(), Violation> {
        if prepared.is_empty() {
            return Ok(());
        }
        let wrs: Vec<SendWr<'_>> = prepared
            .iter()
            .map(|wr| SendWr {
                wr_id: wr.id,
                op: wr.op,
                flags: wr.flags,
                payload: match &wr.inline {
                    Some(bytes) => Payload::Inline(bytes),
                    None => Payload::Sges(&wr.sges),
                },
                dest: wr.dest,
            })
            .collect();
        let endpoint = &self.model.endpoints[id];
        let time = self.time(endpoint.host);
        let host = &mut self.hosts[endpoint.host];
        host.rnic.post_send(time, endpoint.qp, &wrs).map_err(|(index, error)| {
            Violation::new(format!("post_send refused WR {}: {error}", wrs[index].wr_id >> 1))
        })?;
        host.wake(self.now);
        Ok(())
    }
}
