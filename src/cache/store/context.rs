//! Who commits, and where.

use crate::cache::books::incomplete::IncompleteKey;
use crate::cache::{ClientId, Core, CoreError};
use crate::object::{CommitRequest, ObjectId};

/// Who commits, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) client: ClientId,
    pub(crate) instance: [u8; 16],
    pub(crate) commits: u64,
    pub(crate) domain: u32,
    pub(crate) chunk: u32,
}

impl Core {
    /// Of a client as the rank that it has registered.
    pub(crate) fn context(&self, client: ClientId, request: &CommitRequest) -> Result<Context, CoreError> {
        self.require_chunk_size()?;
        let entry = self.attached(client)?;
        let (domain, layout) = self.registry.find(&request.domain_seed)?;
        let unknown = CoreError::NotRegistered {
            what: "this client as a rank of the domain",
        };
        let registered = entry.registration.as_ref().filter(|r| r.domain == domain);
        if registered.ok_or(unknown)?.is_replaced() {
            return Err(CoreError::NotRegistered {
                what: "this client, since another one of its engine has the same rank of the domain now,",
            });
        }
        Ok(Context {
            client,
            instance: entry.info.engine_instance,
            commits: entry.commits,
            domain,
            chunk: layout.chunk,
        })
    }
}

impl Context {
    pub(crate) fn key(&self, id: &ObjectId) -> IncompleteKey {
        IncompleteKey {
            instance: self.instance,
            domain: self.domain,
            id: *id,
        }
    }
}
