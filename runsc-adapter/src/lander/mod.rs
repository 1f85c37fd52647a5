//! The lander: the sidecar that runsc starts in place of gVisor's `checkpointgofer`, in the pod's cgroup.
//!
//! It is the only process that writes guest memory, so that the memory is charged to the pod. It decodes nothing, knows
//! no store and holds no credentials: thawd hands it verified bytes as descriptor, offset and length, and it moves them
//! with one kernel copy. A few threads with blocking I/O, a few MiB of memory, no buffers that grow.
//!
//! # A restore
//!
//! ```text
//!  shim             lander                        sentry                    thawd
//!   |  <- Hello ----- |                              |                         |
//!   |                 | -- Restore ---------------------------------------->   |
//!   |                 | <------------------------------------- Welcome{sizes}  |
//!   |                 | <- Open checkpoint.img ----- |                         |
//!   |                 | <- Open pages_meta.img ----- |                         |
//!   |                 | <- Open pages.img ---------- |                         |
//!   |                 | <- RegisterClientFile ...    |                         |
//!   |                 | <= read checkpoint.img ===== | (flipcall)              |
//!   |                 | -- Read ------------------------------------------->   |
//!   |                 | <---------------------- Segment(fd), Data{pieces}      |
//!   |                 | == copied, completed ======> |                         |
//!   |                 | <= read pages_meta.img ===== |                         |
//!   |                 | <----------------------------------------------- Ready |
//!   |  <- Ready ----- |   (thawd is ready and the sentry has asked)            |
//!   |  -- Go -------> |                              |                         |
//!   |  <- Went ------ | == pages_meta.img =========> | the kernel can run now  |
//!   |                 | <= reads of pages.img ====== |                         |
//!   |                 |    ... until every page was handed over ...            |
//!   |  <- Landed ---- |                              |                         |
//!   |                 | <- Close x 3, hang-up ------ |                         |
//! ```
//!
//! * **The gate.** The restored kernel cannot run without `pages_meta.img`; its completions are withheld until go
//!   (module `gate`). A compressed checkpoint has only `checkpoint.img`, which is withheld instead. The first of go and abort wins. After an abort (or a hang-up of the shim before go) no read of any file
//!   is answered any more and the process ends, which ends the sandbox. After go a hang-up of the shim changes nothing.
//! * **thawd goes away**: the lander connects anew for ever, says Restore again and repeats what is unanswered. Before
//!   go it gives up after a few seconds and reports `node-unavailable`, so that the container can start cold.
//! * **Lost data**: a page read is never completed with an error or with zeros. The process ends with
//!   [`exit::DATA_LOST`] and the sentry kills the sandbox.
//!
//! # A capture
//!
//! ```text
//!  shim             lander                        sentry                    thawd
//!   |  <- Hello ----- | -- Capture ----------------------------------------->  |
//!   |                 | <- Open (write) x 1 or 3 --- |                         |
//!   |                 | <- RegisterClientFile(fd) -- |                         |
//!   |                 | -- ClientFile(fd) ---------------------------------->  |
//!   |                 | <= write{ranges} =========== | (paused)                |
//!   |                 | -- Write{ranges} ----------------------------------->  | copies into its spool
//!   |                 | <-------------------------------------- Done{errno}    |
//!   |                 | == completed ==============> |                         |
//!   |                 | <= finalize ================ |                         |
//!   |                 | -- Finalize ---------------------------------------->  |
//!   |  <- Saved ----- | <-------------------------------------- Done{errno}    |
//!   |                 | == completed ==============> |                         |
//! ```
//!
//! The bytes never pass through the lander. A file is the concatenation of its writes in the order of submission, which
//! one thread per file keeps. A refused capture accepts Open and fails the first write: readers in the guest of
//! `/proc/gvisor/checkpoint` would otherwise hang (gVisor `runsc/boot/loader.go`, `Loader.save`). Without thawd writes
//! fail with EIO: the checkpoint fails and the application goes on.
//!
//! # Copying
//!
//! [`land`] moves bytes with `splice` through a private pipe: the cache's pages are referenced, not copied, and copied
//! once into the memory file at an explicit offset. `sendfile` would do the same but writes at the file position, which
//! belongs to the open file description and is thus shared with the sentry. A mapping of the memory file costs twice the
//! CPU and maps the whole image into this process. `pread` and `pwrite` through a small buffer serve where `splice` is
//! refused.

pub mod args;
mod capture;
pub mod coverage;
pub mod exit;
mod files;
mod gate;
mod inherited;
pub mod land;
pub mod limits;
mod log;
mod process;
mod restore;
mod seqpacket;
mod service;

pub use process::main;
