/// The clock that everything here that takes a [`elver_verbs::Time`] is given.
pub use elver_soft::now;
