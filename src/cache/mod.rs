//! The cache core: index, records, pins, grants, eviction, lookup over object groups.
//!
//! May import everything up to `pool`.
