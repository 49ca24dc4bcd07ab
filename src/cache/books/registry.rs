//! Domains: which object groups exist, how many parts they have, how large each is.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::cache::{CoreError, Registration};
use crate::geometry::ObjectKind;
use crate::keys::{ChunkKey, KeyHashing};
use crate::object::{DomainShape, FRAME_BYTES, GroupRegistration, GroupShape, frames_for, tail_bit};
use crate::pool::body::MAX_PART_BYTES;

/// Object groups of one domain: each has a bit of half a word.
pub const MAX_DOMAIN_GROUPS: usize = 32;
/// Parts of one object.
pub const MAX_PARTS: u16 = 1024;
/// Domains at a time.
pub const MAX_DOMAINS: usize = 1024;
/// Parts that ranks have registered of all groups of all domains.
pub const MAX_REGISTERED_PARTS: usize = 65_536;

/// One object group of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DomainGroup {
    /// Its number.
    pub(crate) group: u16,
    /// Its kind.
    pub(crate) kind: ObjectKind,
    /// Parts of an object.
    pub(crate) parts: u16,
    /// Bytes per alignment (or per state) of each part that some rank has registered, by part. A list and not a tree: the last
    /// rank's farewell ends all domains' parts at once, and a list goes in one piece.
    unit_bytes: Vec<(u16, u64)>,
    /// Frames of those parts of a full chunk, and of the largest of them.
    known_frames: u64,
    largest: u64,
    /// Its bit.
    pub(crate) bit: u32,
}

impl DomainGroup {
    /// Frames of a full chunk. Parts that nobody has registered yet count as the largest that somebody has.
    fn frames(&self) -> u64 {
        let unknown = u64::from(self.parts).saturating_sub(self.unit_bytes.len() as u64);
        self.known_frames + unknown * self.largest
    }

    /// The place of a part that some rank has registered, or where it belongs.
    fn part(&self, part: u16) -> Result<usize, usize> {
        self.unit_bytes.binary_search_by_key(&part, |(part, _)| *part)
    }

    fn unit_bytes(&self, part: u16) -> Option<u64> {
        Some(self.unit_bytes[self.part(part).ok()?].1)
    }

    /// Bytes of a part of an object of `tokens` tokens. `None` for a part that nobody has registered.
    pub(crate) fn part_bytes(&self, part: u16, tokens: u32, alignment: u64) -> Option<u64> {
        let unit = self.unit_bytes(part)?;
        match self.kind {
            ObjectKind::Recurrent => Some(unit),
            _ => unit.checked_mul(u64::from(tokens) / alignment),
        }
    }
}

/// What makes objects comparable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    /// Seed of its keys.
    pub(crate) seed: ChunkKey,
    /// Tokens that every boundary is a multiple of.
    pub(crate) alignment: u64,
    /// Tokens of a full chunk.
    pub(crate) chunk: u32,
    /// Object groups in ascending order.
    pub(crate) groups: Vec<DomainGroup>,
    /// Number of the full-attention group whose records carry those of the other groups: the first one
    /// that was registered.
    pub(crate) anchor: Option<u16>,
    world_size: u32,
    /// A bit for each rank that has registered at some time, and how many have.
    ranks: Vec<u64>,
    ranks_seen: u32,
    registrations: usize,
    records: u64,
}

impl Domain {
    /// Whether all ranks have registered at some time, so that no mandatory group is unknown.
    pub(crate) fn is_complete(&self) -> bool {
        self.ranks_seen >= self.world_size
    }

    fn has_seen(&self, rank: u32) -> bool {
        self.ranks
            .get(rank as usize / 64)
            .is_some_and(|bits| bits >> (rank % 64) & 1 != 0)
    }

    /// Notes a rank, which is less than their number.
    fn see(&mut self, rank: u32) {
        if !self.has_seen(rank) {
            self.ranks.resize(self.world_size.div_ceil(64) as usize, 0);
            self.ranks[rank as usize / 64] |= 1 << (rank % 64);
            self.ranks_seen += 1;
        }
    }

    /// Pieces of memory that it consists of: what it takes to end it.
    fn pieces(&self) -> u32 {
        2 + self.groups.len() as u32
    }

    /// The bit of a tail of so many tokens in the word of the chunk before it; 0 of a full chunk, which is none.
    pub(crate) fn tail_bit(&self, tokens: u32) -> u32 {
        match tokens < self.chunk {
            true => tail_bit(tokens, self.alignment),
            false => 0,
        }
    }

    /// Frames of one full chunk of every group.
    pub(crate) fn chunk_frames(&self) -> u64 {
        self.groups.iter().map(DomainGroup::frames).sum()
    }

    /// The place of a group with this number, or where it belongs.
    fn find(&self, group: u16) -> Result<usize, usize> {
        self.groups.binary_search_by_key(&group, |g| g.group)
    }

    /// Frames of a part of a full chunk.
    fn part_frames(&self, offered: &GroupRegistration) -> u64 {
        let units = match offered.kind {
            ObjectKind::Recurrent => 1,
            _ => u64::from(self.chunk) / self.alignment,
        };
        frames_for(offered.unit_bytes * units)
    }

    /// What a reader has to know of it. `domain` is its number, `kept_frames_max` what the pins of one client may keep.
    pub(crate) fn shape(&self, domain: u32, kept_frames_max: u64) -> DomainShape {
        let shape = |group: &DomainGroup| GroupShape {
            group: group.group,
            kind: group.kind,
            bit: group.bit,
        };
        DomainShape {
            domain,
            chunk_size: self.chunk,
            alignment: self.alignment,
            anchor: self.anchor,
            groups: self.groups.iter().map(shape).collect(),
            kept_frames_max,
        }
    }

    /// A group by its number.
    pub(crate) fn group(&self, group: u16) -> Option<&DomainGroup> {
        self.groups.get(self.find(group).ok()?)
    }

    /// The group that has a bit.
    pub(crate) fn group_of_bit(&self, bit: u32) -> Option<&DomainGroup> {
        self.groups.iter().find(|g| g.bit == bit)
    }
}

/// All domains. A domain is kept while a rank is registered in it or one of its objects exists.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    domains: BTreeMap<u32, Domain>,
    /// Numbers given so far. None is given twice, since clients remember them.
    numbers: u32,
    by_seed: HashMap<ChunkKey, u32, KeyHashing>,
    /// Parts that are registered in all of them.
    parts: usize,
}

impl Registry {
    /// Registers a rank. Checks everything before it changes anything.
    ///
    /// # Errors
    /// [`CoreError::InvalidGroup`], [`CoreError::InvalidArgument`], [`CoreError::RegistrationConflict`],
    /// [`CoreError::ObjectTooLarge`], [`CoreError::LimitExceeded`].
    pub(crate) fn register(&mut self, r: &Registration, pool_frames: u32) -> Result<u32, CoreError> {
        check_numbers(r)?;
        let new = || Domain {
            seed: r.domain_seed,
            alignment: r.required_alignment,
            chunk: r.chunk_size,
            groups: Vec::new(),
            anchor: None,
            world_size: r.world_size,
            ranks: Vec::new(),
            ranks_seen: 0,
            registrations: 0,
            records: 0,
        };
        let known = self.by_seed.get(&r.domain_seed).copied();
        let parts = match known.and_then(|number| self.domains.get(&number)) {
            Some(domain) => check_domain(domain, r, pool_frames)?,
            None => check_domain(&new(), r, pool_frames)?,
        };
        if self.parts + parts > MAX_REGISTERED_PARTS {
            return Err(CoreError::LimitExceeded {
                what: "registered parts of all domains",
                asked: (self.parts + parts) as u64,
                limit: MAX_REGISTERED_PARTS as u64,
            });
        }
        let at = match known {
            Some(at) => at,
            None => self.new_number()?,
        };
        self.parts += parts;
        self.by_seed.insert(r.domain_seed, at);
        let domain = self.domains.entry(at).or_insert_with(new);
        for offered in &r.groups {
            merge_group(domain, offered);
        }
        domain.see(r.rank);
        domain.registrations += 1;
        Ok(at)
    }

    /// A rank is gone. Its layout stays while objects of it may exist. Pieces of memory that went with it.
    pub(crate) fn unregister(&mut self, domain: u32) -> u32 {
        self.change(domain, |d| d.registrations -= 1)
    }

    /// A record of the domain has come into use.
    pub(crate) fn record_opened(&mut self, domain: u32) {
        self.change(domain, |d| d.records += 1);
    }

    /// A record of the domain is free again. Pieces of memory that went with it.
    pub(crate) fn record_closed(&mut self, domain: u32) -> u32 {
        self.change(domain, |d| d.records -= 1)
    }

    /// The domain of a seed.
    ///
    /// # Errors
    /// [`CoreError::NotRegistered`].
    pub(crate) fn find(&self, seed: &ChunkKey) -> Result<(u32, &Domain), CoreError> {
        let found = self
            .by_seed
            .get(seed)
            .and_then(|number| Some((*number, self.domains.get(number)?)));
        found.ok_or(CoreError::NotRegistered { what: "the domain" })
    }

    /// A domain by its number.
    pub(crate) fn get(&self, domain: u32) -> Option<&Domain> {
        self.domains.get(&domain)
    }

    /// Domains known.
    pub(crate) fn len(&self) -> usize {
        self.by_seed.len()
    }

    fn change(&mut self, domain: u32, change: impl FnOnce(&mut Domain)) -> u32 {
        let Some(entry) = self.domains.get_mut(&domain) else {
            return 0;
        };
        change(entry);
        if entry.registrations > 0 || entry.records > 0 {
            return 0;
        }
        let pieces = entry.pieces();
        self.parts -= entry.groups.iter().map(|g| g.unit_bytes.len()).sum::<usize>();
        self.by_seed.remove(&entry.seed);
        self.domains.remove(&domain);
        pieces
    }

    fn new_number(&mut self) -> Result<u32, CoreError> {
        // The last number is the one that says "not given" on the wire.
        if self.domains.len() >= MAX_DOMAINS || self.numbers == u32::MAX {
            return Err(CoreError::LimitExceeded {
                what: "domains",
                asked: MAX_DOMAINS as u64 + 1,
                limit: MAX_DOMAINS as u64,
            });
        }
        self.numbers += 1;
        Ok(self.numbers - 1)
    }
}

fn check_numbers(r: &Registration) -> Result<(), CoreError> {
    let argument = |field, value, expected| CoreError::InvalidArgument {
        field,
        value,
        expected,
    };
    let (alignment, chunk) = (r.required_alignment, r.chunk_size);
    if alignment == 0 || !u64::from(chunk).is_multiple_of(alignment) {
        let expected = "it must divide the bound chunk size and not be 0";
        return Err(argument("required alignment", alignment, expected));
    }
    if r.world_size == 0 || u32::from(MAX_PARTS) < r.world_size {
        return Err(argument(
            "number of ranks",
            r.world_size.into(),
            "it must be 1 to 1024",
        ));
    }
    if r.rank >= r.world_size {
        return Err(argument(
            "rank",
            r.rank.into(),
            "ranks count from 0 and are less than the number of ranks",
        ));
    }
    if r.groups.is_empty() {
        return Err(argument(
            "number of object groups",
            0,
            "a rank registers every group that it holds a part of, and at least one",
        ));
    }
    if r.groups.len() > MAX_DOMAIN_GROUPS {
        return Err(CoreError::LimitExceeded {
            what: "object groups",
            asked: r.groups.len() as u64,
            limit: MAX_DOMAIN_GROUPS as u64,
        });
    }
    let mut seen = BTreeSet::new();
    for g in &r.groups {
        let invalid = |field, value, expected| CoreError::InvalidGroup {
            group: g.group,
            field,
            value,
            expected,
        };
        if !seen.insert(g.group) {
            return Err(invalid("number", g.group.into(), "each group is registered once"));
        }
        if g.parts == 0 || g.parts > MAX_PARTS {
            return Err(invalid("number of parts", g.parts.into(), "it must be 1 to 1024"));
        }
        if u32::from(g.parts) > r.world_size {
            let expected = "a rank holds one part of a group, so it must not exceed the number of ranks";
            return Err(invalid("number of parts", g.parts.into(), expected));
        }
        if g.part >= g.parts {
            return Err(invalid(
                "part",
                g.part.into(),
                "it must be less than the number of parts",
            ));
        }
        if let ObjectKind::Window { tokens: 0 } | ObjectKind::ChunkedLocal { tokens: 0 } = g.kind {
            return Err(invalid("window", 0, "it must be at least 1 token"));
        }
        let units = u64::from(chunk) / alignment;
        let bytes = g.unit_bytes.checked_mul(units);
        if g.unit_bytes == 0 || bytes.is_none_or(|b| b > MAX_PART_BYTES) {
            let expected = "a chunk of it must have 1 to 2^48 - 1 bytes";
            return Err(invalid("unit bytes", g.unit_bytes, expected));
        }
    }
    Ok(())
}

fn check_same(group: u16, field: &'static str, registered: u64, offered: u64) -> Result<(), CoreError> {
    if registered == offered {
        return Ok(());
    }
    Err(CoreError::RegistrationConflict {
        group,
        field,
        registered,
        offered,
    })
}

/// Whether a registration agrees with what is known of its domain. How many parts it adds.
fn check_domain(domain: &Domain, r: &Registration, pool_frames: u32) -> Result<usize, CoreError> {
    check_same(0, "required alignment", domain.alignment, r.required_alignment)?;
    check_same(0, "chunk size", domain.chunk.into(), r.chunk_size.into())?;
    let (old, new) = (domain.world_size.into(), r.world_size.into());
    check_same(0, "number of ranks", old, new)?;
    let (mut groups, mut parts) = (domain.groups.len(), 0);
    for offered in &r.groups {
        let mut frames = domain.part_frames(offered);
        match domain.find(offered.group) {
            Ok(at) => {
                let group = &domain.groups[at];
                parts += usize::from(check_group(group, offered)?);
                let unknown = u64::from(group.parts) - group.unit_bytes.len() as u64;
                frames = group.frames().max(group.known_frames + unknown * frames);
            }
            Err(_) => {
                (groups, parts) = (groups + 1, parts + 1);
                frames *= u64::from(offered.parts);
            }
        }
        check_fits(offered.group, frames, pool_frames)?;
    }
    if domain.is_complete() {
        // Readers remember what the domain looks like: a group that they do not know of they would not wait for.
        let known = domain.groups.len() as u64;
        check_same(0, "number of object groups", known, groups as u64)?;
    }
    if groups > MAX_DOMAIN_GROUPS {
        return Err(CoreError::LimitExceeded {
            what: "object groups",
            asked: groups as u64,
            limit: MAX_DOMAIN_GROUPS as u64,
        });
    }
    let ranks = domain.ranks_seen + u32::from(!domain.has_seen(r.rank));
    if ranks >= domain.world_size {
        check_parts(domain, r)?;
    }
    Ok(parts)
}

/// Whether a registration agrees with what is known of a group. Whether its part is new.
fn check_group(group: &DomainGroup, offered: &GroupRegistration) -> Result<bool, CoreError> {
    let number = offered.group;
    let (old, new) = (kind_numbers(group.kind), kind_numbers(offered.kind));
    check_same(number, "kind", old.0, new.0)?;
    check_same(number, "window", old.1, new.1)?;
    let (old, new) = (group.parts.into(), offered.parts.into());
    check_same(number, "number of parts", old, new)?;
    let Some(unit) = group.unit_bytes(offered.part) else {
        return Ok(true);
    };
    check_same(number, "unit bytes", unit, offered.unit_bytes)?;
    Ok(false)
}

/// Adds what has been checked.
fn merge_group(domain: &mut Domain, offered: &GroupRegistration) {
    let frames = domain.part_frames(offered);
    let at = domain.find(offered.group).unwrap_or_else(|at| {
        let group = DomainGroup {
            group: offered.group,
            kind: offered.kind,
            parts: offered.parts,
            unit_bytes: Vec::new(),
            known_frames: 0,
            largest: 0,
            bit: 1 << domain.groups.len(),
        };
        domain.groups.insert(at, group);
        if domain.anchor.is_none() && offered.kind == ObjectKind::Full {
            domain.anchor = Some(offered.group);
        }
        at
    });
    let group = &mut domain.groups[at];
    if let Err(at) = group.part(offered.part) {
        group.unit_bytes.insert(at, (offered.part, offered.unit_bytes));
        group.known_frames += frames;
        group.largest = group.largest.max(frames);
    }
}

/// The kind's number in the schema, and its window.
fn kind_numbers(kind: ObjectKind) -> (u64, u64) {
    match kind {
        ObjectKind::Full => (0, 0),
        ObjectKind::Window { tokens } => (1, tokens),
        ObjectKind::ChunkedLocal { tokens } => (2, tokens),
        ObjectKind::Recurrent => (3, 0),
    }
}

/// Once all ranks have registered, each part of each group is one that some rank holds: an object of the others would
/// never be whole.
fn check_parts(domain: &Domain, last: &Registration) -> Result<(), CoreError> {
    let known = |group: u16| {
        domain
            .group(group)
            .map_or((0, 0), |g| (g.unit_bytes.len(), g.parts))
    };
    let offered = |group: u16| last.groups.iter().find(|offered| offered.group == group);
    let own = last.groups.iter().map(|offered| offered.group);
    for number in domain.groups.iter().map(|group| group.group).chain(own) {
        let (mut held, mut parts) = known(number);
        if let Some(offered) = offered(number) {
            let group = domain.group(number);
            held += usize::from(group.is_none_or(|g| g.part(offered.part).is_err()));
            parts = offered.parts;
        }
        if held < usize::from(parts) {
            return Err(CoreError::InvalidGroup {
                group: number,
                field: "number of parts that ranks have registered",
                value: held as u64,
                expected: "with the last rank every part must be some rank's",
            });
        }
    }
    Ok(())
}

/// One chunk of each group, as far as its parts are known, must fit in the empty pool.
fn check_fits(group: u16, frames: u64, pool_frames: u32) -> Result<(), CoreError> {
    if frames > pool_frames.into() {
        return Err(CoreError::ObjectTooLarge {
            group,
            bytes: frames.saturating_mul(FRAME_BYTES),
            pool: u64::from(pool_frames) * FRAME_BYTES,
        });
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests/registry.rs"]
mod tests;
