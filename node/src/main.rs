//! thawd.
fn main() {}
