//! One object or one listing at a time, with deadline, retry and length checks.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, ObjectStoreExt, PutMode,
    PutOptions, PutPayload,
};

use super::attempt::{Budget, run};
use super::backend::Backend;
use super::error::{Failure, Operation, StoreError, StoreErrorKind};

/// Reads and writes of single objects.
#[derive(Clone)]
pub(super) struct Objects {
    backend: Arc<Backend>,
}

/// Names asked for at once where all are wanted.
const PAGE_OF_NAMES: usize = 1000;

impl Objects {
    pub(super) fn new(backend: Backend) -> Objects {
        Objects {
            backend: Arc::new(backend),
        }
    }

    /// A local store whose directory is gone has no objects and would list as empty.
    async fn check_root(&self) -> Result<(), Failure> {
        let Some(root) = &self.backend.local else {
            return Ok(());
        };
        match tokio::fs::read_dir(root).await {
            Ok(_) => Ok(()),
            Err(error) => Err(Failure::new(
                StoreErrorKind::Unreachable,
                format!("directory {}: {error}", root.display()),
            )),
        }
    }

    /// Creates the directory of a local store.
    pub(super) async fn create_root(&self) -> Result<(), StoreError> {
        let Some(root) = &self.backend.local else {
            return Ok(());
        };
        let budget = Budget::background(0);
        run(Operation::Prepare, &self.backend.prefix, budget, || async {
            // What lies in it is as secret as the memory it came from.
            let mut builder = tokio::fs::DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder.create(root).await.map_err(|e| Failure::io(&e))
        })
        .await
    }

    /// A whole object of at most `max` bytes.
    pub(super) async fn get(
        &self,
        path: &Path,
        max: u64,
        budget: Budget,
    ) -> Result<Bytes, StoreError> {
        run(Operation::Get, path, budget, || async {
            self.check_root().await?;
            let result = self
                .backend
                .objects
                .get_opts(path, GetOptions::default())
                .await?;
            if result.meta.size > max {
                return Err(Failure::new(
                    StoreErrorKind::Other,
                    format!("{} bytes are more than the {max} allowed", result.meta.size),
                ));
            }
            let len = result.meta.size;
            collect(result, len).await
        })
        .await
    }

    /// Exactly these bytes of an object.
    pub(super) async fn get_range(
        &self,
        path: &Path,
        range: Range<u64>,
        budget: Budget,
    ) -> Result<Bytes, StoreError> {
        run(Operation::Get, path, budget, || async {
            self.check_root().await?;
            let options = GetOptions {
                range: Some(GetRange::Bounded(range.clone())),
                ..GetOptions::default()
            };
            let result = self.backend.objects.get_opts(path, options).await?;
            if result.range != range {
                return Err(Failure::new(
                    StoreErrorKind::Body,
                    format!("asked for bytes {range:?}, got {:?}", result.range),
                ));
            }
            collect(result, range.end - range.start).await
        })
        .await
    }

    /// Length of an object.
    pub(super) async fn len(&self, path: &Path, budget: Budget) -> Result<u64, StoreError> {
        run(Operation::Get, path, budget, || async {
            self.check_root().await?;
            Ok(self.backend.objects.head(path).await?.size)
        })
        .await
    }

    /// Creates an object. One that is there already counts as created: names say what is in it, and an attempt whose
    /// answer was lost must not fail the next.
    pub(super) async fn create(
        &self,
        path: &Path,
        bytes: Bytes,
        budget: Budget,
    ) -> Result<(), StoreError> {
        run(Operation::Put, path, budget, || async {
            self.check_root().await?;
            match self.put(path, bytes.clone(), PutMode::Create).await {
                Err(object_store::Error::AlreadyExists { .. }) => Ok(()),
                // Without conditional put the unique name alone keeps objects from being rewritten.
                Err(object_store::Error::NotImplemented { .. }) => {
                    Ok(self.put(path, bytes.clone(), PutMode::Overwrite).await?)
                }
                other => Ok(other?),
            }
        })
        .await
    }

    async fn put(&self, path: &Path, bytes: Bytes, mode: PutMode) -> object_store::Result<()> {
        let options = PutOptions {
            mode,
            ..PutOptions::default()
        };
        self.backend
            .objects
            .put_opts(path, PutPayload::from_bytes(bytes), options)
            .await
            .map(drop)
    }

    /// Deletes an object; one that is not there counts as deleted.
    pub(super) async fn delete(&self, path: &Path, budget: Budget) -> Result<(), StoreError> {
        run(Operation::Delete, path, budget, || async {
            self.check_root().await?;
            match self.backend.objects.delete(path).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                other => Ok(other?),
            }
        })
        .await?;
        self.remove_empty_directories(path).await;
        Ok(())
    }

    /// Only a local store has directories that can be empty. Best effort: a directory that is not empty any more stays.
    async fn remove_empty_directories(&self, path: &Path) {
        let Some(root) = &self.backend.local else {
            return;
        };
        let file = std::path::Path::new("/").join(path.as_ref());
        let mut directory = file.parent();
        while let Some(dir) = directory.filter(|dir| *dir != root && dir.starts_with(root)) {
            if tokio::fs::remove_dir(dir).await.is_err() {
                return;
            }
            directory = dir.parent();
        }
    }

    /// Objects below `prefix`, in order of their names; the first `max` of them if given.
    pub(super) async fn list(
        &self,
        prefix: &Path,
        max: Option<usize>,
        budget: Budget,
    ) -> Result<Vec<ObjectMeta>, StoreError> {
        run(Operation::List, prefix, budget, || async {
            self.check_root().await?;
            let mut found = match &self.backend.pages {
                Some(_) => self.list_pages(prefix, max).await?,
                None => {
                    self.backend
                        .objects
                        .list(Some(prefix))
                        .try_collect()
                        .await?
                }
            };
            found.sort_by(|a, b| a.location.cmp(&b.location));
            found.truncate(max.unwrap_or(usize::MAX));
            Ok(found)
        })
        .await
    }

    async fn list_pages(
        &self,
        prefix: &Path,
        max: Option<usize>,
    ) -> object_store::Result<Vec<ObjectMeta>> {
        let Some(pages) = &self.backend.pages else {
            return Ok(Vec::new());
        };
        let prefix = format!("{prefix}/");
        let mut found = Vec::new();
        let mut page_token = None;
        loop {
            let options = PaginatedListOptions {
                max_keys: Some(max.map_or(PAGE_OF_NAMES, |max| max - found.len())),
                page_token,
                ..PaginatedListOptions::default()
            };
            let page = pages.list_paginated(Some(&prefix), options).await?;
            found.extend(page.result.objects);
            page_token = page.page_token;
            if page_token.is_none() || max.is_some_and(|max| found.len() >= max) {
                return Ok(found);
            }
        }
    }

    /// Names directly below `prefix` that have something below themselves.
    pub(super) async fn list_directories(
        &self,
        prefix: &Path,
        budget: Budget,
    ) -> Result<Vec<Path>, StoreError> {
        run(Operation::List, prefix, budget, || async {
            self.check_root().await?;
            let listed = self.backend.objects.list_with_delimiter(Some(prefix)).await;
            match listed {
                Ok(listed) => Ok(listed.common_prefixes),
                // A local directory that is not there yet.
                Err(object_store::Error::NotFound { .. }) if self.backend.local.is_some() => {
                    Ok(Vec::new())
                }
                Err(error) => Err(error.into()),
            }
        })
        .await
    }
}

/// The body, which must have exactly `len` bytes.
async fn collect(result: GetResult, len: u64) -> Result<Bytes, Failure> {
    let bytes = match &result.payload {
        GetResultPayload::File(..) => result.bytes().await?,
        GetResultPayload::Stream(_) => {
            let mut stream = result.into_stream();
            let mut body = BytesMut::new();
            let mut whole = None;
            while let Some(part) = stream.try_next().await? {
                if body.len() as u64 + part.len() as u64 > len {
                    return Err(Failure::new(
                        StoreErrorKind::Body,
                        format!("more than the {len} bytes announced"),
                    ));
                }
                // Most bodies come in one part and need no copy.
                if part.len() as u64 == len {
                    whole = Some(part);
                } else {
                    if body.is_empty() {
                        body.reserve(len as usize);
                    }
                    body.extend_from_slice(&part);
                }
            }
            whole.unwrap_or_else(|| body.freeze())
        }
    };
    if bytes.len() as u64 == len {
        Ok(bytes)
    } else {
        Err(Failure::new(
            StoreErrorKind::Body,
            format!("{} bytes instead of {len}", bytes.len()),
        ))
    }
}
