//! A registry that lets pull what a [`Library`] holds, whatever host it is asked for.
//!
//! It is a proxy too, in so far as it answers requests for any host, so that images keep their real names.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use super::library::Library;

type Answer = Response<Full<Bytes>>;

/// Serves a library on loopback for as long as this process lives. Returns the address.
pub fn serve(library: Library) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name("registry".into())
        .spawn(move || runtime.block_on(accept(listener, Arc::new(library))))?;
    Ok(address)
}

async fn accept(listener: TcpListener, library: Arc<Library>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let library = library.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let answer = answer(&library, &request);
                async move { Ok::<_, std::convert::Infallible>(answer) }
            });
            // A client that hangs up is its own business.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn answer(library: &Library, request: &Request<Incoming>) -> Answer {
    let path = request.uri().path();
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return empty(StatusCode::METHOD_NOT_ALLOWED);
    }
    match path.strip_prefix("/v2/") {
        Some("") => empty(StatusCode::OK),
        Some(path) => content(library, path, *request.method() == Method::HEAD)
            .unwrap_or_else(|| empty(StatusCode::NOT_FOUND)),
        None => empty(StatusCode::NOT_FOUND),
    }
}

/// `<repository>/manifests/<tag or digest>` or `<repository>/blobs/<digest>`.
fn content(library: &Library, path: &str, head: bool) -> Option<Answer> {
    let (rest, reference) = path.rsplit_once('/')?;
    let (repository, kind) = rest.rsplit_once('/')?;
    let file = match kind {
        "manifests" => library.manifest(repository, reference)?,
        "blobs" => library.blob(reference)?,
        _ => return None,
    };
    let digest = format!("sha256:{}", file.file_name()?.to_string_lossy());
    let data = fs::read(&file).ok()?;
    let media_type = match kind {
        "manifests" => serde_json::from_slice::<serde_json::Value>(&data).ok()?["mediaType"]
            .as_str()?
            .to_owned(),
        _ => "application/octet-stream".to_owned(),
    };
    let answer = Response::builder()
        .header(CONTENT_TYPE, media_type)
        .header(CONTENT_LENGTH, data.len())
        .header("Docker-Content-Digest", digest);
    let body = if head { Vec::new() } else { data };
    answer.body(Full::from(body)).ok()
}

fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::http;
    use crate::image::Image;

    #[test]
    fn an_image_is_served_by_any_name_of_the_registry() {
        let dir = tempfile::tempdir().unwrap();
        let mut library = Library::create(dir.path()).unwrap();
        let digest = library
            .add(&Image::new("example.org/a/b:1").file("x", "y", 0o644))
            .unwrap();
        let address = serve(library).unwrap();
        let get = |path: &str| http::get(address, path, Duration::from_secs(10)).unwrap();
        assert_eq!(get("/v2/").status, 200);
        let by_tag = get("/v2/a/b/manifests/1");
        assert_eq!(by_tag.status, 200);
        assert_eq!(by_tag, get(&format!("/v2/a/b/manifests/{digest}")));
        assert_eq!(
            by_tag,
            get(&format!("http://example.org/v2/a/b/blobs/{digest}"))
        );
        assert_eq!(get("/v2/a/b/manifests/2").status, 404);
        assert_eq!(get("/v2/a/b/blobs/1").status, 404);
    }
}
