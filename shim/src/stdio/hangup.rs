//! The end of a terminal's output.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use nix::errno::Errno;
use tokio::io::{AsyncRead, ReadBuf};

/// A terminal's master end. When the last process has closed the terminal, reading fails with EIO (pty(7)); that is the
/// end of the output and no error: a copy that meets an error drops what it has read and not yet written.
pub(super) struct UntilHangup<R>(pub(super) R);

impl<R: AsyncRead + Unpin> AsyncRead for UntilHangup<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match ready!(Pin::new(&mut self.0).poll_read(cx, buf)) {
            Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) => Poll::Ready(Ok(())),
            other => Poll::Ready(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Some bytes, then a hang-up.
    struct Terminal(&'static [u8]);

    impl AsyncRead for Terminal {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            if self.0.is_empty() {
                return Poll::Ready(Err(std::io::Error::from_raw_os_error(Errno::EIO as i32)));
            }
            let (now, later) = self.0.split_at(self.0.len().min(buf.remaining()));
            buf.put_slice(now);
            self.0 = later;
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn what_was_read_before_the_hangup_is_written_however_slow_the_reader() {
        let (mut to, mut from) = tokio::io::duplex(2);
        let copy = tokio::spawn(async move {
            tokio::io::copy(&mut UntilHangup(Terminal(b"the last words")), &mut to).await?;
            to.shutdown().await
        });
        tokio::task::yield_now().await;
        let mut text = String::new();
        from.read_to_string(&mut text).await.unwrap();
        copy.await.unwrap().unwrap();
        assert_eq!(text, "the last words");
    }
}
