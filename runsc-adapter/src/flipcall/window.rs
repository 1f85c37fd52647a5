//! The shared packet window. All memory access goes through atomics: the peer may change any byte at any time, so no
//! reference to plain data in the window is ever formed.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::HEADER_LEN;
use super::datagram::Datagram;

/// A mapped packet window.
#[derive(Debug)]
pub struct Window {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the window is plain shared memory that is only ever reached through atomics, from any thread.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// A new zero-filled window of `len` bytes and the sealed memfd behind it. `len` is a multiple of the page size.
    pub fn create(len: usize) -> io::Result<(OwnedFd, Window)> {
        let fd = memfd_create(
            "thaw-window",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&fd, len as u64)?;
        // A peer that could shrink the file would kill this process by SIGBUS.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let window = Window::map(&fd, 0, len)?;
        Ok((fd, window))
    }

    /// Maps `len` bytes at `offset` of `fd`; the file must be at least that long and sealed against shrinking.
    pub fn map(fd: impl AsFd, offset: u64, len: usize) -> io::Result<Window> {
        if len <= HEADER_LEN {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                offset,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Window { base, len })
    }

    /// Bytes that a datagram may have.
    pub fn capacity(&self) -> usize {
        self.len - HEADER_LEN
    }

    /// Word 0: whose turn it is.
    pub(super) fn state(&self) -> &AtomicU32 {
        self.word(0)
    }

    /// Word 1: the datagram's length or count.
    pub(super) fn count(&self) -> &AtomicU32 {
        self.word(1)
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        // SAFETY: the mapping is page-aligned and longer than the header, lives as long as `self`, and both processes
        // use this word atomically.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().cast::<u32>().add(index)) }
    }

    /// The datagram's bytes `at..at + len`.
    fn bytes(&self, at: usize, len: usize) -> Option<&[AtomicU8]> {
        if at.checked_add(len)? > self.capacity() {
            return None;
        }
        // SAFETY: in bounds by the check above; `AtomicU8` has the layout of `u8`, allows shared mutation, and the
        // mapping lives as long as `self`.
        Some(unsafe {
            std::slice::from_raw_parts(
                self.base.as_ptr().add(HEADER_LEN + at).cast::<AtomicU8>(),
                len,
            )
        })
    }

    /// Writes `data` into the datagram. False if it does not fit.
    #[must_use]
    pub fn store(&self, at: usize, data: &[u8]) -> bool {
        let Some(bytes) = self.bytes(at, data.len()) else {
            return false;
        };
        for (to, from) in bytes.iter().zip(data) {
            to.store(*from, Ordering::Relaxed);
        }
        true
    }
}

impl Datagram for Window {
    fn load(&self, at: usize, out: &mut [u8]) -> bool {
        let Some(bytes) = self.bytes(at, out.len()) else {
            return false;
        };
        for (to, from) in out.iter_mut().zip(bytes) {
            *to = from.load(Ordering::Relaxed);
        }
        true
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length and nothing borrows from it any more.
        // A failure leaves the mapping in place, which is harmless.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_mapping_stores_the_other_loads() {
        let (fd, ours) = Window::create(4096).unwrap();
        let theirs = Window::map(&fd, 0, 4096).unwrap();
        assert!(ours.store(3, b"abc"));
        let mut got = [0; 3];
        assert!(theirs.load(3, &mut got));
        assert_eq!(&got, b"abc");
    }

    #[test]
    fn nothing_outside_the_datagram_is_reached() {
        let (_fd, window) = Window::create(4096).unwrap();
        assert_eq!(window.capacity(), 4080);
        assert!(window.store(4079, b"x"));
        assert!(!window.store(4080, b"x"));
        assert!(!window.store(usize::MAX, b"x"));
        assert!(!window.load(4078, &mut [0; 3]));
    }

    #[test]
    fn a_window_cannot_be_shrunk() {
        let (fd, _window) = Window::create(4096).unwrap();
        assert!(ftruncate(&fd, 0).is_err());
    }
}
