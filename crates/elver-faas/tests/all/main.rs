//! Functions in real containers, which crun and runc make. It takes root.

mod assigned;
mod faults;
mod keepers;
mod lambda;
mod lease_attacks;
mod leased;
mod native;
mod openwhisk;
mod openwhisk_image;
mod platform;
mod preloaded;
mod provided;
mod qps;
mod rdma;
mod regions;
mod restarts;
mod soak;
mod starts;
mod store;
mod threaded;
mod users;
