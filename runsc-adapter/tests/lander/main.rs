//! The lander as a process: against stand-ins for its peers, and under the real runsc.

mod real_runsc;
mod stand_ins;
mod support;
