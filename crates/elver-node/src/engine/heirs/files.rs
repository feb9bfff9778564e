//! Files of sets: the maker's thread makes them and gives them back, and they count for whoever prepared
//! a set for as long as somebody has a session of it.

use elver_core::Core;
use elver_portal::{Answer, NodeRecords, RefusalCode};
use elver_soft::SoftDevice;
use elver_verbs::Time;

use super::{Files, Sets};
use crate::engine::maker::Maker;
use crate::engine::orders::{Filed, SetFile};
use crate::engine::quota::Usage;
use crate::engine::sessions::Sessions;
use crate::engine::translate::Refused;

impl Sets {
    /// The file of a set was made, or not. It is handed to the process that prepares the set, or the set
    /// goes.
    pub(in crate::engine) fn filed(
        &mut self,
        filed: Filed,
        sessions: &mut Sessions,
        (core, maker): (&mut Core<SoftDevice>, &Maker),
        now: Time,
    ) {
        let Filed { order: SetFile { set: number, token, request, account, bytes, .. }, result } =
            filed;
        let waits = |set: &&mut super::Set| set.parent.token == token && set.files.is_none();
        let set = self.all.get_mut(&number).filter(waits);
        let is_there = set.is_some();
        let handed = match (result, set) {
            (Ok(file), Some(set)) => {
                let records = NodeRecords::map(&file, set.layout);
                let sent = records.and_then(|records| {
                    sessions.send_memory(token, request, &file).map(|()| records)
                });
                match sent {
                    Ok(records) => {
                        set.files = Some(Files { file, records });
                        Ok(Answer::Prepared { set: number, file_bytes: bytes })
                    }
                    Err(error) => {
                        maker.empty(file, bytes);
                        Err(error.into())
                    }
                }
            }
            (Ok(file), None) => {
                maker.empty(file, bytes);
                Err(Refused::new(RefusalCode::State, "the set was ended before it was there"))
            }
            (Err(error), _) => Err(error.into()),
        };
        if handed.is_err() {
            if is_there {
                self.dissolve(number, sessions, core, now);
            }
            sessions.quotas.give_back(account, Usage::bytes(bytes));
        }
        sessions.answer_token(token, request, handed, now);
    }

    /// Gives back the files in which nobody has a session any more.
    pub(super) fn give_back_files(&mut self, sessions: &mut Sessions, maker: &Maker) {
        for one in self.outliving.extract_if(.., |one| one.file.is_last()) {
            sessions.quotas.give_back(one.account, Usage::bytes(one.bytes));
            maker.empty(one.file, one.bytes);
        }
    }
}
