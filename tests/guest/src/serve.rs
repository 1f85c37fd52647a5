//! A minimal HTTP server: one request per connection, one connection at a time.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::data;

/// Serves for ever.
pub(crate) fn serve(port: u16, data: &[u8], page: Option<&str>) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    let mut count = 0;
    loop {
        // A client that goes away is its own business.
        if let Ok((stream, _)) = listener.accept() {
            let _ = answer(stream, data, page, &mut count);
        }
    }
}

fn answer(
    mut stream: TcpStream,
    data: &[u8],
    page: Option<&str>,
    count: &mut u64,
) -> io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            n => request.extend_from_slice(&buffer[..n]),
        }
    }
    let line = String::from_utf8_lossy(&request);
    let (status, body) = match line.split(' ').nth(1) {
        Some("/hash") => ("200 OK", data::hash(data)),
        Some("/count") => {
            *count += 1;
            ("200 OK", count.to_string())
        }
        Some("/env") => ("200 OK", environment()),
        Some("/args") => ("200 OK", std::env::args().collect::<Vec<_>>().join("\n")),
        Some("/") if page.is_some() => ("200 OK", page.unwrap_or_default().to_owned()),
        _ => ("404 Not Found", String::new()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn environment() -> String {
    std::env::vars_os()
        .map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()))
        .collect::<Vec<_>>()
        .join("\n")
}
