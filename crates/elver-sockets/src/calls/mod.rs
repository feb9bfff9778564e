//! The C library's functions that programs find here. What is none of ours goes on to the C library's own.

mod epoll;
mod fork;
mod input;
mod number;
mod output;
mod poll;
mod select;
mod sockets;
mod spawn;
mod table;
