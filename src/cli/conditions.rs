//! What engines say keeps them from caching, in words for people. The names are those of [`Condition`].

use crate::index::conditions::Condition;

/// What it comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing is reused or stored, or everything that was stored is of no use.
    CachesNothing,
    /// It does without a part, or for a time.
    CachesLess,
}

/// What a condition comes to, its cause, and its cure. A name of a later version speaks for itself.
pub(super) fn in_words(name: &str) -> (Effect, String, &'static str) {
    use Effect::{CachesLess, CachesNothing};
    let Some(condition) = Condition::named(name) else {
        return (CachesLess, format!("it reports {name}"), "its log says why");
    };
    let (effect, cause, cure) = match condition {
        Condition::WeightsPending => (
            CachesLess,
            "caches nothing yet: its weights are being read to know what they are",
            "wait until they are, which takes as long as reading the model does, and only once; kvasir.weights_id does without",
        ),
        Condition::WeightsUnreadable => (
            CachesNothing,
            "caches nothing: its weights could not be read",
            "make the files readable (its log says which), it tries again by itself; or set kvasir.weights_id and start it again",
        ),
        Condition::WeightsUnknown => (
            CachesNothing,
            "caches nothing: what its weights are is not known (changed since it began to load them, or nothing tells)",
            "start it again, or set kvasir.weights_id; its log says why",
        ),
        Condition::WorkersRefused => (
            CachesNothing,
            "caches nothing: its workers cannot be served, or differ in what has to be equal",
            "its log says in what",
        ),
        Condition::ChunkRefused => (
            CachesNothing,
            "caches nothing: the server's chunk size does not suit it",
            "start it again, or a server with the --chunk-size that its log names",
        ),
        Condition::LoadsForbidden => (
            CachesNothing,
            "stores and loads nothing back: under its kv_load_failure_policy or kv_role a load that fails would do harm",
            "set kv_load_failure_policy to \"recompute\", also in the outer kv_transfer_config of a MultiConnector; its log \
             says which",
        ),
        Condition::AdapterUnknown => (
            CachesLess,
            "caches nothing with one of its adapters: what that one is is not known (yet)",
            "if it stays, load the adapter again once its files are complete and readable; its log says which",
        ),
        Condition::MediaUnhashed => (
            CachesLess,
            "caches no requests with images or other media, because it does not hash them",
            "start it with its prefix cache, or with its cache of media, on",
        ),
        Condition::ServersDiffer => (
            CachesNothing,
            "caches nothing: the servers that it names have different chunk sizes, or are one server",
            "name each server once, and start all with one --chunk-size",
        ),
        Condition::StatesUnreached => (
            CachesLess,
            "resumes few or no prefixes: its steps end between the places at which recurrent state can be resumed",
            "start it with the --block-size or --max-num-batched-tokens that its log names",
        ),
        Condition::ErrorsSpared => (
            CachesLess,
            "had an error in the connector, which its engine was spared: since then it may cache less, or nothing",
            "its log has the traceback, which is worth a report",
        ),
    };
    (effect, cause.into(), cure)
}
