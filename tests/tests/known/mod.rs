//! Where a shim's trace differs from the reference's.

mod runsc;
mod thaw;

pub(crate) use runsc::RUNSC;
pub(crate) use thaw::THAW;
