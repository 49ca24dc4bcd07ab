//! Payload whose pages lie in device memory. The bytes in the pool are what is summed: after they came from the device,
//! and before they go there. So a load copies only what was found to be what was stored.

use std::sync::Arc;

use super::device_copies::Stopped;
use crate::client::ClientError;
use crate::client::device::pages::DevicePages;
use crate::client::device::stage::Way;
use crate::client::link::core::Core;
use crate::client::link::held::{Claim, Mark};
use crate::client::link::session::Session;
use crate::copy::SummedPlan;
use crate::object::Extent;

/// Copies parts into extents of the pool, and returns their checksums, or none where none are wanted. `None`: they are
/// not there. The extents are this client's to use again then, or will be once the copy has ended.
pub(crate) fn store(
    core: &Arc<Core>,
    session: &Arc<Session>,
    pages: &Arc<DevicePages>,
    plan: &SummedPlan,
    extents: &[Extent],
) -> Result<Option<Vec<u64>>, ClientError> {
    let pool = session.pool()?;
    let copied = core.copy_pages(session, pages, Way::Store, &plan.unsummed());
    let summed = match copied {
        Ok(()) if core.config.checksums => {
            let sums = plan.summing_destination();
            core.engine().execute_summed(&sums, pool.memory(), &[])
        }
        Ok(()) => Ok(Vec::new()),
        Err(stopped) => {
            match stopped {
                Stopped::Running(mark) => {
                    let claim = Claim::Extents(extents.to_vec());
                    core.hold(mark, Way::Store, pages, session, claim);
                }
                Stopped::Ended => pool.granted().add(extents.iter().copied()),
                Stopped::Refused(error) => {
                    pool.granted().add(extents.iter().copied());
                    return Err(error);
                }
            }
            return Ok(None);
        }
    };
    if summed.is_err() {
        pool.granted().add(extents.iter().copied());
    }
    Ok(Some(summed?))
}

/// What a load's copy brought.
pub(crate) struct Brought {
    /// Of each part its checksum, where it was wanted.
    pub(crate) checksums: Vec<u64>,
    /// Whether the bytes of the parts with the right sums are in their pages.
    pub(crate) copied: bool,
    /// What keeps the pin from going back, if it has to stay.
    pub(crate) mark: Option<Mark>,
}

/// Copies parts out of the pool that a validated pin holds. `part` adds one of them to a plan, and `stored` are the
/// checksums that their writers gave, 0 for none. What has another sum is not copied.
pub(crate) fn load(
    core: &Arc<Core>,
    session: &Arc<Session>,
    pages: &Arc<DevicePages>,
    stored: &[u64],
    part: impl Fn(usize, &mut SummedPlan),
) -> Result<Brought, ClientError> {
    let pool = session.pool()?;
    let mut checksums = Vec::new();
    if core.config.checksums {
        let mut all = SummedPlan::new();
        (0..stored.len()).for_each(|index| part(index, &mut all));
        checksums = core
            .engine()
            .execute_summed(&all.summing_source(), pool.memory(), &[])?;
    }
    let mut right = SummedPlan::new();
    for (index, stored) in stored.iter().enumerate() {
        let differs = checksums.get(index).is_some_and(|sum| sum != stored);
        if *stored == 0 || !differs {
            part(index, &mut right);
        }
    }
    let (copied, mark) = match core.copy_pages(session, pages, Way::Load, &right.unsummed()) {
        Ok(()) => (true, None),
        Err(Stopped::Ended) => (false, None),
        Err(Stopped::Running(mark)) => (false, Some(mark)),
        Err(Stopped::Refused(error)) => return Err(error),
    };
    Ok(Brought {
        checksums,
        copied,
        mark,
    })
}
