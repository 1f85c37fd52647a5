//! Multipart uploads. Parts are kept in memory until the upload completes or is aborted.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};

use super::xml;

#[derive(Debug)]
struct Upload {
    subject: String,
    parts: BTreeMap<u32, Bytes>,
}

/// The uploads under way.
#[derive(Debug, Default)]
pub(super) struct Uploads(Mutex<(u64, BTreeMap<String, Upload>)>);

impl Uploads {
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<String, Upload>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an upload and names it.
    pub(super) fn create(&self, subject: &str) -> String {
        let mut inner = self.lock();
        inner.0 += 1;
        let id = format!("upload-{}", inner.0);
        inner.1.insert(
            id.clone(),
            Upload {
                subject: subject.to_owned(),
                parts: BTreeMap::new(),
            },
        );
        id
    }

    /// Keeps a part; false if there is no such upload.
    pub(super) fn part(&self, id: &str, subject: &str, number: u32, data: Bytes) -> bool {
        match self.lock().1.get_mut(id) {
            Some(upload) if upload.subject == subject => {
                upload.parts.insert(number, data);
                true
            }
            _ => false,
        }
    }

    /// The parts put together, without ending the upload.
    pub(super) fn assemble(&self, id: &str, subject: &str) -> Option<Bytes> {
        let inner = self.lock();
        let upload = inner.1.get(id).filter(|u| u.subject == subject)?;
        let mut data = BytesMut::new();
        for part in upload.parts.values() {
            data.extend_from_slice(part);
        }
        Some(data.freeze())
    }

    /// Ends an upload; false if there is no such one.
    pub(super) fn end(&self, id: &str) -> bool {
        self.lock().1.remove(id).is_some()
    }

    /// Listing of the uploads of a bucket.
    pub(super) fn list(&self, bucket: &str) -> String {
        let mut document =
            String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListMultipartUploadsResult>");
        let prefix = format!("{bucket}/");
        for (id, upload) in &self.lock().1 {
            if let Some(key) = upload.subject.strip_prefix(&prefix) {
                document += &format!(
                    "<Upload>{}{}</Upload>",
                    xml::element("Key", key),
                    xml::element("UploadId", id)
                );
            }
        }
        document + "</ListMultipartUploadsResult>"
    }

    /// Listing of the parts of an upload.
    pub(super) fn list_parts(&self, id: &str) -> Option<String> {
        let inner = self.lock();
        let upload = inner.1.get(id)?;
        let mut document =
            String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListPartsResult>");
        for (number, part) in &upload.parts {
            document += &format!(
                "<Part>{}{}</Part>",
                xml::element("PartNumber", &number.to_string()),
                xml::element("Size", &part.len().to_string())
            );
        }
        Some(document + "</ListPartsResult>")
    }
}
