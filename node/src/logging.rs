//! Logs go to standard error, one line each: time, level, module, message, then fields as `name=value`.

use std::panic;

use tracing_subscriber::EnvFilter;

/// Environment variable with a filter such as `debug` or `thaw_node=debug,info`.
pub const LOG_ENV: &str = "THAW_LOG";

/// Starts logging and makes a panic write its place and message to the log before the process ends.
pub fn init() {
    let filter = EnvFilter::try_from_env(LOG_ENV).unwrap_or_else(|_| EnvFilter::new("info"));
    // A second initialisation in one process (tests) keeps the first.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .try_init();
    panic::set_hook(Box::new(|info| {
        let place = info
            .location()
            .map(|l| format!("{}:{}", l.file(), l.line()))
            .unwrap_or_default();
        let message = info
            .payload()
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| info.payload().downcast_ref::<String>().cloned())
            .unwrap_or_default();
        tracing::error!(place, message, "panic");
    }));
}
