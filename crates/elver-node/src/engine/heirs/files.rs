//! Files of sets: the maker's thread makes them and gives them back, and they count for whoever prepared
//! a set for as long as somebody has a session of it.

use std::sync::Arc;

use elver_core::Core;
use elver_portal::{Answer, NodeRecords};
use elver_soft::SoftDevice;
use elver_verbs::Time;

use super::{Files, Places, Sets};
use crate::engine::maker::Maker;
use crate::engine::orders::{Awaiting, Cleared, Filed, SetFile};
use crate::engine::quota::Usage;
use crate::engine::sessions::Sessions;

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
        // What nobody is handed goes as well when its account's turn comes, and counts until then.
        let discard = |file| {
            let (usage, awaited_by) = (Usage::file(bytes), Awaiting::Nobody);
            maker.empty(file, bytes, Cleared { account, usage, awaited_by });
        };
        let waits =
            |set: &&mut super::Set| set.parent.token == token && set.preparing == Some(request);
        let Some(set) = self.all.get_mut(&number).filter(waits) else {
            // Whoever ended the set has answered.
            match result {
                Ok(file) => discard(file),
                Err(_) => sessions.quotas.give_back(account, Usage::file(bytes)),
            }
            return;
        };
        let handed = match result {
            Ok(file) => {
                let records = NodeRecords::map(&file, set.layout);
                file.is_had_by(account);
                let sent = records.and_then(|records| {
                    sessions.send_memory(token, request, &file).map(|()| records)
                });
                match sent {
                    Ok(records) => {
                        set.files = Some(Files { file, records: Arc::new(records) });
                        set.preparing = None;
                        Ok(Answer::Prepared { set: number, file_bytes: bytes })
                    }
                    Err(error) => {
                        discard(file);
                        Err(error.into())
                    }
                }
            }
            Err(error) => {
                sessions.quotas.give_back(account, Usage::file(bytes));
                Err(error.into())
            }
        };
        if handed.is_err() {
            self.dissolve(number, sessions, core, now);
        }
        sessions.answer_token(token, request, handed, now);
    }

    /// Gives back the places of sets that have ended, before what sessions had there: what goes last is unmapped, and counts
    /// until then.
    pub(in crate::engine) fn give_back_places(&mut self, maker: &Maker) {
        for Places { account, usage, all } in self.places.drain(..) {
            maker.unmap(all, Cleared { account, usage, awaited_by: Awaiting::Nobody });
        }
    }

    /// Gives back the files in which nobody has a session any more. They count until they have gone.
    pub(super) fn give_back_files(&mut self, maker: &Maker) {
        for one in self.outliving.extract_if(.., |one| one.file.is_last()) {
            let (usage, awaited_by) = (Usage::file(one.bytes), Awaiting::Nobody);
            let cleared = Cleared { account: one.account, usage, awaited_by };
            maker.empty(one.file, one.bytes, cleared);
        }
    }
}
