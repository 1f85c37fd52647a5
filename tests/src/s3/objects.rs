//! What each S3 request does.

use hyper::{Method, StatusCode};

use super::backend::{Backend, BackendError, Object, etag_of};
use super::multipart::Uploads;
use super::reply::Reply;
use super::request::{Request, parse_range};
use super::{clock, list, xml};

/// Objects and uploads.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) backend: Backend,
    pub(super) uploads: Uploads,
}

impl Objects {
    /// The answer of a store without shape and faults.
    pub(super) fn answer(&self, request: &Request) -> Reply {
        self.route(request).unwrap_or_else(|e| {
            Reply::error(
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalError",
                &e.to_string(),
                &request.key,
            )
        })
    }

    fn route(&self, request: &Request) -> Result<Reply, BackendError> {
        let has = |name| request.query(name).is_some();
        let subject = request.subject();
        match (request.method.clone(), request.key.is_empty()) {
            (Method::GET, true) if has("uploads") => Ok(Reply::xml(
                StatusCode::OK,
                self.uploads.list(&request.bucket),
            )),
            (Method::GET, true) => list::list(&self.backend, request),
            (Method::HEAD | Method::PUT, true) => Ok(Reply::empty(StatusCode::OK)),
            (Method::POST, true) if has("delete") => self.bulk_delete(request),
            (Method::GET, false) if has("uploadId") => {
                let id = request.query("uploadId").unwrap_or_default();
                Ok(self
                    .uploads
                    .list_parts(id)
                    .map_or_else(|| no_upload(request), |doc| Reply::xml(StatusCode::OK, doc)))
            }
            (Method::GET | Method::HEAD, false) => self.get(request),
            (Method::PUT, false) if has("uploadId") => Ok(self.put_part(request)),
            (Method::PUT, false) => self.put(request),
            (Method::POST, false) if has("uploads") => {
                let id = self.uploads.create(&subject);
                let document = format!(
                    "<?xml version=\"1.0\" encoding=\"UTF-8\"?><InitiateMultipartUploadResult>{}{}{}\
                     </InitiateMultipartUploadResult>",
                    xml::element("Bucket", &request.bucket),
                    xml::element("Key", &request.key),
                    xml::element("UploadId", &id)
                );
                Ok(Reply::xml(StatusCode::OK, document))
            }
            (Method::POST, false) if has("uploadId") => self.complete(request),
            (Method::DELETE, false) if has("uploadId") => {
                let ended = self
                    .uploads
                    .end(request.query("uploadId").unwrap_or_default());
                Ok(if ended {
                    Reply::empty(StatusCode::NO_CONTENT)
                } else {
                    no_upload(request)
                })
            }
            (Method::DELETE, false) => {
                self.backend.remove(&subject)?;
                Ok(Reply::empty(StatusCode::NO_CONTENT))
            }
            _ => Ok(Reply::error(
                StatusCode::NOT_IMPLEMENTED,
                "NotImplemented",
                "this server does not know that request",
                &request.key,
            )),
        }
    }

    fn get(&self, request: &Request) -> Result<Reply, BackendError> {
        let Some(object) = self.backend.get(&request.subject())? else {
            return Ok(Reply::error(
                StatusCode::NOT_FOUND,
                "NoSuchKey",
                "there is no such object",
                &request.key,
            ));
        };
        let etag = &object.etag;
        if request
            .header("if-match")
            .is_some_and(|wanted| wanted != "*" && wanted != *etag)
        {
            return Ok(precondition_failed(request));
        }
        if request
            .header("if-none-match")
            .is_some_and(|known| known == "*" || known == *etag)
        {
            return Ok(Reply::empty(StatusCode::NOT_MODIFIED).header("etag", etag.as_str()));
        }
        let size = object.size;
        let range = match request
            .header("range")
            .map(|range| parse_range(range, size))
        {
            Some(Err(())) => {
                return Ok(Reply::error(
                    StatusCode::RANGE_NOT_SATISFIABLE,
                    "InvalidRange",
                    "the range lies outside the object",
                    &request.key,
                )
                .header("content-range", format!("bytes */{size}")));
            }
            Some(Ok(range)) => range,
            None => None,
        };
        found(request, &object, range)
    }

    fn put(&self, request: &Request) -> Result<Reply, BackendError> {
        let subject = request.subject();
        if let Some(reply) = self.refuse_write(request)? {
            return Ok(reply);
        }
        if let Some(source) = request.header("x-amz-copy-source") {
            let source = source.trim_start_matches('/').replace("%2F", "/");
            let Some(object) = self.backend.get(&source)? else {
                return Ok(Reply::failure(404, &source));
            };
            let document = format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?><CopyObjectResult>{}{}</CopyObjectResult>",
                xml::element("ETag", &object.etag),
                xml::element("LastModified", &clock::iso_date(object.modified))
            );
            self.backend.put(&subject, object.data()?)?;
            return Ok(Reply::xml(StatusCode::OK, document));
        }
        self.backend.put(&subject, request.body.clone())?;
        let etag = self.etag(&subject)?;
        Ok(Reply::empty(StatusCode::OK).header("etag", etag))
    }

    /// The tag that the next read of an object just written will show.
    fn etag(&self, subject: &str) -> Result<String, BackendError> {
        Ok(self
            .backend
            .get(subject)?
            .map_or_else(String::new, |object| object.etag))
    }

    /// `If-None-Match: *` and `If-Match` of a write.
    fn refuse_write(&self, request: &Request) -> Result<Option<Reply>, BackendError> {
        let create = request.header("if-none-match") == Some("*");
        let update = request.header("if-match");
        if !create && update.is_none() {
            return Ok(None);
        }
        let now = self.backend.get(&request.subject())?;
        let refused = (create && now.is_some())
            || update.is_some_and(|etag| now.is_none_or(|object| object.etag != etag));
        Ok(refused.then(|| precondition_failed(request)))
    }

    fn put_part(&self, request: &Request) -> Reply {
        let id = request.query("uploadId").unwrap_or_default();
        let number = request.query("partNumber").and_then(|n| n.parse().ok());
        match number {
            Some(number)
                if self
                    .uploads
                    .part(id, &request.subject(), number, request.body.clone()) =>
            {
                Reply::empty(StatusCode::OK).header("etag", etag_of(&request.body))
            }
            _ => no_upload(request),
        }
    }

    fn complete(&self, request: &Request) -> Result<Reply, BackendError> {
        let id = request.query("uploadId").unwrap_or_default();
        let Some(data) = self.uploads.assemble(id, &request.subject()) else {
            return Ok(no_upload(request));
        };
        if let Some(reply) = self.refuse_write(request)? {
            return Ok(reply);
        }
        self.backend.put(&request.subject(), data)?;
        let etag = self.etag(&request.subject())?;
        self.uploads.end(id);
        let document = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><CompleteMultipartUploadResult>{}{}{}\
             </CompleteMultipartUploadResult>",
            xml::element("Bucket", &request.bucket),
            xml::element("Key", &request.key),
            xml::element("ETag", &etag)
        );
        Ok(Reply::xml(StatusCode::OK, document))
    }

    fn bulk_delete(&self, request: &Request) -> Result<Reply, BackendError> {
        let keys = xml::contents(&String::from_utf8_lossy(&request.body), "Key");
        let mut document = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?><DeleteResult>");
        for key in keys {
            self.backend.remove(&format!("{}/{key}", request.bucket))?;
            document += &format!("<Deleted>{}</Deleted>", xml::element("Key", &key));
        }
        Ok(Reply::xml(StatusCode::OK, document + "</DeleteResult>"))
    }
}

fn found(
    request: &Request,
    object: &Object,
    range: Option<(u64, u64)>,
) -> Result<Reply, BackendError> {
    let size = object.size;
    let (status, start, end) = match range {
        Some((start, end)) => (StatusCode::PARTIAL_CONTENT, start, end),
        None => (StatusCode::OK, 0, size),
    };
    let mut reply = Reply::empty(status)
        .header("etag", object.etag.clone())
        .header("last-modified", clock::http_date(object.modified))
        .header("accept-ranges", "bytes");
    if range.is_some() {
        reply = reply.header("content-range", format!("bytes {start}-{}/{size}", end - 1));
    }
    if request.method == Method::HEAD {
        reply.length = Some(end - start);
    } else {
        reply.body = object.read(start, end)?;
    }
    Ok(reply)
}

fn no_upload(request: &Request) -> Reply {
    Reply::error(
        StatusCode::NOT_FOUND,
        "NoSuchUpload",
        "there is no such upload",
        &request.key,
    )
}

fn precondition_failed(request: &Request) -> Reply {
    Reply::error(
        StatusCode::PRECONDITION_FAILED,
        "PreconditionFailed",
        "a condition of the request does not hold",
        &request.key,
    )
}
