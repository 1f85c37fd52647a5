//! What each file is opened with.

use thaw_proto::data::File;

use crate::flipcall::datagram::Limits;

const KIB: u32 = 1024;
const MIB: u32 = 1024 * KIB;

/// Streams of a restore: the sentry's stream buffer is 8 MiB, and it asks for all of it at once.
const READ_STREAM: Limits = Limits {
    max_io_bytes: MIB,
    max_ranges: 1,
    max_parallel: 8,
};
/// Small and few, so that a completion is always near: only at a completion can the sentry say which page it waits for.
/// thawd reads ahead by itself.
const READ_PAGES: Limits = Limits {
    max_io_bytes: 256 * KIB,
    max_ranges: 256,
    max_parallel: 8,
};
/// Streams of a capture.
const WRITE_STREAM: Limits = Limits {
    max_io_bytes: MIB,
    max_ranges: 1,
    max_parallel: 4,
};
/// The application is paused meanwhile: enough in flight that thawd's copiers never wait for the sentry.
const WRITE_PAGES: Limits = Limits {
    max_io_bytes: MIB,
    max_ranges: 256,
    max_parallel: 8,
};

/// Limits of a file opened for reading.
pub const fn read(file: File) -> Limits {
    match file {
        File::State | File::PagesMeta => READ_STREAM,
        File::Pages => READ_PAGES,
    }
}

/// Limits of a file opened for writing.
pub const fn write(file: File) -> Limits {
    match file {
        File::State | File::PagesMeta => WRITE_STREAM,
        File::Pages => WRITE_PAGES,
    }
}
