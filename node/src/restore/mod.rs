//! Handing verified bytes over to landers: which blocks a read needs ([`spans`]) and one connection ([`session`]).

pub mod session;
pub mod spans;
pub mod warm;
