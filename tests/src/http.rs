//! A small blocking HTTP/1.1 client: one request per connection, no more than tests and the demo need.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// GET with an overall time limit.
pub fn get(address: SocketAddr, path: &str, limit: Duration) -> io::Result<Answer> {
    request(address, "GET", path, b"", limit)
}

/// Sends one request and reads the answer up to its `Content-Length`, or to the end of the connection. An answer that is
/// shorter than announced is an error.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &[u8],
    limit: Duration,
) -> io::Result<Answer> {
    let deadline = Instant::now() + limit;
    let left = || {
        deadline
            .checked_duration_since(Instant::now())
            .filter(|d| !d.is_zero())
            .ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut))
    };
    let mut stream = TcpStream::connect_timeout(&address, left()?)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(left()?))?;
    let mut message = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    message.extend_from_slice(body);
    stream.write_all(&message)?;

    let mut received = Vec::new();
    let mut buffer = [0; 64 * 1024];
    loop {
        if let Some(answer) = parse(&received, false)? {
            return Ok(answer);
        }
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut buffer)? {
            0 => {
                return parse(&received, true)?
                    .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            n => received.extend_from_slice(&buffer[..n]),
        }
    }
}

/// The answer, as soon as it is complete.
fn parse(received: &[u8], ended: bool) -> io::Result<Option<Answer>> {
    let Some(end) = received.windows(4).position(|w| w == b"\r\n\r\n") else {
        return Ok(None);
    };
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "malformed HTTP answer");
    let head = std::str::from_utf8(&received[..end]).map_err(|_| malformed())?;
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .ok_or_else(malformed)?;
    let length: Option<usize> = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map(|(_, value)| value.trim().parse().map_err(|_| malformed()))
        .transpose()?;
    let body = &received[end + 4..];
    let body = match length {
        Some(length) if status != 204 => match body.get(..length) {
            Some(body) => body,
            None => return Ok(None),
        },
        _ if status == 204 => &[],
        _ if ended => body,
        _ => return Ok(None),
    };
    Ok(Some(Answer {
        status,
        body: body.to_vec(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_complete_at_its_length_or_at_the_end() {
        let full = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(parse(full, false).unwrap().unwrap().body, b"abc");
        assert!(parse(&full[..full.len() - 1], false).unwrap().is_none());
        assert!(parse(&full[..full.len() - 1], true).unwrap().is_none());
        let open = b"HTTP/1.0 404 Not Found\r\n\r\nno";
        assert!(parse(open, false).unwrap().is_none());
        let answer = parse(open, true).unwrap().unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (404, "no"));
        assert!(parse(b"nonsense\r\n\r\n", true).is_err());
    }
}
