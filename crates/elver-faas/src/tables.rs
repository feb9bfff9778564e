//! The two tables of an INIT process (Swift, §4.1.3): the QP Table and the Assignment Table.
//!
//! One index is a QP's id in both. The INIT process alone works on them, so there is no lock. They do
//! no IO: what is to be connected or made is said, and the caller does it.

use std::fmt;

/// A QP's id: its index in both tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpId(pub usize);

/// Why a child got no QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoQp {
    /// All are assigned to children, or connected elsewhere; there may be no more of them.
    Exhausted {
        /// How many there are.
        qps: usize,
    },
}

impl fmt::Display for NoQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoQp::Exhausted { qps } = self;
        write!(f, "all {qps} QPs of the INIT process are in use; let children end, or allow more")
    }
}

impl std::error::Error for NoQp {}

/// What [`Tables::assign`] chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The QP.
    pub qp: QpId,
    /// Whether it already leads to the wanted destination; if not, it is to be connected there.
    pub connected: bool,
}

/// One row of the Assignment Table.
#[derive(Clone, Debug)]
struct Assignment<D> {
    child: Option<u32>,
    destination: Option<D>,
}

/// Both tables. `Q` is what stands for a QP, `D` for a destination.
#[derive(Debug)]
pub struct Tables<Q, D> {
    /// The QP Table; a row whose QP was lost is empty, and used again.
    qps: Vec<Option<Q>>,
    assignments: Vec<Assignment<D>>,
    spare: usize,
    qps_max: usize,
}

impl<Q, D: PartialEq> Tables<Q, D> {
    /// Empty tables that want `spare` QPs without a child or destination, and have at most `qps_max`.
    pub fn new(spare: usize, qps_max: usize) -> Tables<Q, D> {
        Tables { qps: Vec::new(), assignments: Vec::new(), spare, qps_max }
    }

    /// How many QPs are to be made now, because fewer than the threshold are without a destination.
    pub fn wanted(&self) -> usize {
        let unassigned = self.rows().filter(|(_, row)| row.is_unassigned()).count();
        self.spare.saturating_sub(unassigned).min(self.qps_max - self.rows().count())
    }

    /// Puts a new QP into the first free row. `None`, and nothing done, if there may be no more.
    pub fn add(&mut self, qp: Q, destination: Option<D>) -> Option<QpId> {
        if self.rows().count() == self.qps_max {
            return None;
        }
        let row = Assignment { child: None, destination };
        match self.qps.iter().position(Option::is_none) {
            Some(free) => {
                (self.qps[free], self.assignments[free]) = (Some(qp), row);
                Some(QpId(free))
            }
            None => {
                self.qps.push(Some(qp));
                self.assignments.push(row);
                Some(QpId(self.qps.len() - 1))
            }
        }
    }

    /// Assigns to a child the first free QP with the destination, else the first without any, whose
    /// destination it is from here on.
    ///
    /// # Errors
    /// [`NoQp::Exhausted`] if there is neither.
    pub fn assign(&mut self, child: u32, destination: D) -> Result<Assigned, NoQp> {
        let free = |wanted: Option<&D>| {
            let fits =
                |row: &Assignment<D>| row.child.is_none() && row.destination.as_ref() == wanted;
            self.rows().find(|(_, row)| fits(row)).map(|(id, _)| id)
        };
        let (qp, connected) = match (free(Some(&destination)), free(None)) {
            (Some(qp), _) => (qp, true),
            (None, Some(qp)) => (qp, false),
            (None, None) => return Err(NoQp::Exhausted { qps: self.rows().count() }),
        };
        self.assignments[qp.0] = Assignment { child: Some(child), destination: Some(destination) };
        Ok(Assigned { qp, connected })
    }

    /// Frees all that a child had, which has ended; its destinations stay connected. Returns the QPs.
    pub fn ended(&mut self, child: u32) -> Vec<QpId> {
        let of_child: Vec<QpId> =
            self.rows().filter(|(_, row)| row.child == Some(child)).map(|(id, _)| id).collect();
        for id in &of_child {
            self.assignments[id.0].child = None;
        }
        of_child
    }

    /// Takes a QP out that cannot be used again, whoever has it.
    pub fn lose(&mut self, id: QpId) -> Option<Q> {
        let qp = self.qps.get_mut(id.0)?.take()?;
        self.assignments[id.0] = Assignment { child: None, destination: None };
        Some(qp)
    }

    /// The QP of an id.
    pub fn qp(&self, id: QpId) -> Option<&Q> {
        self.qps.get(id.0)?.as_ref()
    }

    /// The child that has a QP.
    pub fn child(&self, id: QpId) -> Option<u32> {
        self.assignments.get(id.0)?.child
    }

    /// Where a QP leads.
    pub fn destination(&self, id: QpId) -> Option<&D> {
        self.assignments.get(id.0)?.destination.as_ref()
    }

    /// Takes all QPs out: the container ends, and all are closed at once (§4.1.4).
    pub fn close(&mut self) -> Vec<Q> {
        self.assignments.clear();
        self.qps.drain(..).flatten().collect()
    }

    fn rows(&self) -> impl Iterator<Item = (QpId, &Assignment<D>)> {
        let rows = self.qps.iter().zip(&self.assignments).enumerate();
        rows.filter(|(_, (qp, _))| qp.is_some()).map(|(index, (_, row))| (QpId(index), row))
    }
}

impl<D> Assignment<D> {
    fn is_unassigned(&self) -> bool {
        self.child.is_none() && self.destination.is_none()
    }
}

#[cfg(test)]
mod tests;
