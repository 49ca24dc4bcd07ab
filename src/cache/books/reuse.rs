//! How many tokens engines reused: what each counts in its slab, added up per domain.
//!
//! Engines count when a request is taken up, not when they ask: a waiting request is asked about in every step. So the
//! figures do not depend on who answers lookups, and mean what the engines' own metrics mean.

use crate::cache::DomainReuse;
use crate::index::counters::ReuseCounters;
use crate::keys::ChunkKey;

/// Domains whose figures are kept apart once their engines have gone; what comes later is added up under no name.
pub const MAX_REUSE_DOMAINS: usize = 256;

/// Figures by domain, in the order in which the domains came.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReuseByDomain(Vec<DomainReuse>);

impl ReuseByDomain {
    /// Adds a client's figures to those of its domain. Nothing counted leaves no trace.
    pub(crate) fn add(&mut self, named: Option<&(ChunkKey, String)>, tokens: &ReuseCounters) {
        if *tokens == ReuseCounters::default() {
            return;
        }
        let known = |rows: &[DomainReuse], domain| rows.iter().position(|row| row.domain == domain);
        let mut named = named;
        let mut at = known(&self.0, named.map(|(domain, _)| *domain));
        if at.is_none() && self.0.len() >= MAX_REUSE_DOMAINS {
            named = None;
            at = known(&self.0, None);
        }
        let at = at.unwrap_or_else(|| {
            self.0.push(DomainReuse {
                domain: named.map(|(domain, _)| *domain),
                model: named.map(|(_, model)| model.clone()).unwrap_or_default(),
                tokens: ReuseCounters::default(),
            });
            self.0.len() - 1
        });
        self.0[at].tokens.add(tokens);
    }

    /// All of them.
    pub(crate) fn into_rows(self) -> Vec<DomainReuse> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(asked: u64) -> ReuseCounters {
        ReuseCounters {
            asked,
            ..ReuseCounters::default()
        }
    }

    fn domain(number: u32) -> (ChunkKey, String) {
        let mut seed = [0; 32];
        seed[..4].copy_from_slice(&number.to_le_bytes());
        (ChunkKey::from_bytes(seed), format!("model {number}"))
    }

    #[test]
    fn sums_are_kept_per_domain_and_a_lie_is_no_panic() {
        let mut all = ReuseByDomain::default();
        all.add(Some(&domain(1)), &asked(5));
        all.add(None, &asked(3));
        all.add(Some(&domain(2)), &ReuseCounters::default());
        all.add(Some(&domain(1)), &asked(u64::MAX));
        let rows: Vec<_> = all
            .into_rows()
            .into_iter()
            .map(|row| (row.model, row.tokens.asked))
            .collect();
        assert_eq!(rows, [("model 1".into(), u64::MAX), (String::new(), 3)]);
    }

    #[test]
    fn domains_without_end_are_not_kept_without_end() {
        let mut all = ReuseByDomain::default();
        for number in 0..2 * MAX_REUSE_DOMAINS as u32 {
            all.add(Some(&domain(number)), &asked(1));
        }
        all.add(Some(&domain(0)), &asked(1));
        let rows = all.into_rows();
        assert_eq!(rows.len(), MAX_REUSE_DOMAINS + 1);
        assert_eq!(rows[0].tokens.asked, 2);
        let total: u64 = rows.iter().map(|row| row.tokens.asked).sum();
        assert_eq!(total, 2 * MAX_REUSE_DOMAINS as u64 + 1, "nothing is lost");
    }
}
