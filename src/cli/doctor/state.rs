//! States of a running server in which an engine caches nothing, or less than it could.

use std::path::Path;

use serde_json::Value;

use super::{Report, Severity};
use crate::cli::conditions::{Effect, in_words};
use crate::geometry::Bytes;
use crate::index::conditions::Condition;
use crate::object::FRAME_BYTES;

/// What the server says of itself is held against its own limits.
pub(super) fn check(socket: &Path, status: &Value, report: &mut Report) {
    let state = State { socket, status };
    state.check_clients(report);
    state.check_sizes(report);
    state.check_pool(report);
    state.check_objects(report);
}

struct State<'a> {
    socket: &'a Path,
    status: &'a Value,
}

impl State<'_> {
    fn number(&self, path: &str) -> Option<u64> {
        self.status.pointer(path).and_then(Value::as_u64)
    }

    fn clients(&self) -> &[Value] {
        self.status["clients"].as_array().map_or(&[], Vec::as_slice)
    }

    fn check_clients(&self, report: &mut Report) {
        let at = self.socket.display();
        let clients = self.clients();
        let slabs = clients.iter().filter(|client| !client["slab"].is_null()).count() as u64;
        if let Some(limit) = self.number("/limits/clients").filter(|limit| slabs >= *limit) {
            report.silent(
                "server_full",
                format_args!(
                    "{at}: {slabs} of {limit} clients are there, and each further process of an engine caches nothing; end engines \
                     that are not needed, or restart the server with a larger --max-clients (at most 256)"
                ),
            );
        }
        let connections = self.number("/connections").unwrap_or(0);
        let limit = self.number("/limits/connections");
        if let Some(limit) = limit.filter(|limit| connections >= *limit) {
            report.silent(
                "server_full",
                format_args!(
                    "{at}: {connections} of {limit} connections are open, and whoever connects next is refused; close some, or \
                     restart the server with a larger --max-clients"
                ),
            );
        }
        let words = self.number("/limits/pin_words").unwrap_or(u64::MAX);
        for client in clients {
            let name = client["name"].as_str().unwrap_or_default();
            let pid = &client["pid"];
            if client["pin_words"].as_u64().is_some_and(|used| used >= words) {
                report.slow(
                    "pin_words",
                    format_args!(
                        "{at}: process {pid} ({name}) uses all of its {words} pin words, so that its oldest pins go; it has \
                         to release each pin, or end the session, once its load is over"
                    ),
                );
            }
            if let Some(why) = client["refused"].as_str() {
                report.silent(
                    "client_refused",
                    format_args!("{at}: process {pid} ({name}) is connected and caches nothing: {why}"),
                );
            }
            for condition in client["conditions"].as_array().map_or(&[][..], Vec::as_slice) {
                let condition = condition.as_str().unwrap_or_default();
                let (effect, cause, cure) = in_words(condition);
                let severity = match effect {
                    Effect::CachesNothing => Severity::Silent,
                    Effect::CachesLess => Severity::Slow,
                };
                report.push(
                    severity,
                    Condition::named(condition).map_or("engine_condition", Condition::name),
                    format!("{at}: process {pid} ({name}) {cause}; {cure}"),
                );
            }
            if client["connected"] == false {
                report.note(
                    "lost_client",
                    format_args!(
                        "{at}: a process that calls itself {name} lives without a connection; what it holds ({} of pool space) \
                         comes back when it connects again or ends",
                        Bytes(client["granted"].as_u64().unwrap_or(0))
                    ),
                );
            }
            let is_worker = client["kind"] == "worker" && !client["slab"].is_null();
            if client["connected"] == true && is_worker && client["registered"].is_null() {
                report.note(
                    "not_registered",
                    format_args!(
                        "{at}: worker {name} (process {pid}) has registered no KV cache and caches nothing; if it is not just \
                         starting, its log says why"
                    ),
                );
            }
        }
    }

    fn check_sizes(&self, report: &mut Report) {
        let at = self.socket.display();
        let binding = &self.status["binding"];
        let domains = binding["domains"].as_array().map_or(&[][..], Vec::as_slice);
        for row in [binding].into_iter().chain(domains) {
            if row["state"] == "selected" {
                report.silent(
                    "binding_pending",
                    format_args!(
                        "{at}: a chunk size of {} tokens was decided on and is not in force, so nobody is served: the fleet's record \
                         could not be written or has another size; the server's log says which",
                        row["chunk_size"]
                    ),
                );
            }
        }
        let full = |count: u64, limit: &str| self.number(limit).is_some_and(|limit| count >= limit);
        if full(domains.len() as u64, "/limits/binding_domains") {
            report.silent(
                "domains_full",
                format_args!(
                    "{at}: {} models have a chunk size, as many as can; a further model is refused; restart the server to forget those \
                     that are no longer used",
                    domains.len()
                ),
            );
        }
        let registered = self.number("/domains").unwrap_or(0);
        if full(registered, "/limits/domains") {
            report.silent(
                "domains_full",
                format_args!(
                    "{at}: {registered} models, shapes and weights are registered, as many as can be; a further one is refused; \
                     restart the server to forget those that are no longer used"
                ),
            );
        }
    }

    fn check_pool(&self, report: &mut Report) {
        let at = self.socket.display();
        let of = |name: &str| self.number(&format!("/pool/{name}"));
        let [
            Some(total),
            Some(present),
            Some(free),
            Some(used),
            Some(granted),
            Some(held),
            Some(pinned),
        ] = [
            "total",
            "prefaulted",
            "free",
            "used",
            "granted",
            "quarantined",
            "pinned",
        ]
        .map(of)
        else {
            return;
        };
        if present < total {
            let message = format!(
                "{at}: {} of the pool's {} are present in memory, and only those are used; if that does not grow, the machine has \
                 no more memory: restart the server with a smaller --pool-size",
                Bytes(present),
                Bytes(total)
            );
            if present < FRAME_BYTES {
                report.silent("pool_not_present", message);
            } else {
                report.note("pool_not_present", message);
            }
        }
        // Of a chain that a client pins itself `pinned` has the deepest object only.
        let kept = self.clients().iter().filter_map(|client| client["kept"].as_u64());
        let pinned = kept.fold(pinned, u64::max).min(used);
        let full = free + (used - pinned) < FRAME_BYTES;
        let place = format!("{at}: of the pool's {}", Bytes(total));
        if full && pinned >= granted.max(held) {
            report.silent(
                "pool_pinned",
                format_args!(
                    "{place} {} are being read and nothing is free, so nothing can be stored; a larger --pool-size has room for more",
                    Bytes(pinned)
                ),
            );
        } else if full && held >= granted {
            report.silent("pool_quarantined", self.quarantined(held, total));
        } else if full || granted >= total / 4 * 3 {
            let message = format!(
                "{place} {} are held by engines for what they are about to store (three quarters are the most), so others get one \
                 chunk at a time or nothing; a larger --pool-size or a smaller kvasir.credit_bytes leaves room",
                Bytes(granted)
            );
            report.push(
                if full { Severity::Silent } else { Severity::Slow },
                "pool_granted",
                message,
            );
        }
        if !full && held >= total / 4 {
            report.slow("pool_quarantined", self.quarantined(held, total));
        }
    }

    fn quarantined(&self, held: u64, total: u64) -> String {
        format!(
            "{}: {} of the pool's {} are held back until processes that may still write there have ended; end engines that lost \
             their connection, or restart the server",
            self.socket.display(),
            Bytes(held),
            Bytes(total)
        )
    }

    fn check_objects(&self, report: &mut Report) {
        let at = self.socket.display();
        let of = |path: &str| self.number(path).unwrap_or(0);
        let damaged = of("/counters/discarded");
        if damaged > 0 {
            report.silent(
                "damaged_objects",
                format_args!(
                    "{at}: {damaged} objects held other bytes than were stored and were dropped: the machine's memory is faulty, or a \
                     program writes into the pool"
                ),
            );
        }
        let dropped = of("/counters/dropped_stores");
        if dropped > 0 {
            report.slow(
                "stores_dropped",
                format_args!(
                    "{at}: {dropped} stores found no room since the server started; a larger --pool-size has it"
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A server of 16 MiB; the numbers are frames.
    fn found(
        present: u64,
        free: u64,
        used: u64,
        granted: u64,
        quarantined: u64,
        pinned: u64,
    ) -> Vec<(&'static str, &'static str)> {
        let mut report = Report::default();
        let bytes = |frames: u64| frames * FRAME_BYTES;
        let status = json!({"pool": {
            "total": bytes(256), "prefaulted": bytes(present), "free": bytes(free), "used": bytes(used),
            "granted": bytes(granted), "quarantined": bytes(quarantined), "pinned": bytes(pinned),
        }});
        assert_eq!(
            free + used + granted + quarantined,
            256,
            "every frame is in one class"
        );
        check(Path::new("/k.sock"), &status, &mut report);
        report
            .findings
            .iter()
            .map(|finding| (finding.severity.name(), finding.name))
            .collect()
    }

    #[test]
    fn a_pool_has_room_or_whoever_takes_it_is_named() {
        assert_eq!(found(256, 256, 0, 0, 0, 0), []);
        // A cache is full of what may go.
        assert_eq!(found(256, 0, 256, 0, 0, 10), []);
        assert_eq!(found(256, 0, 256, 0, 0, 256), [("silent", "pool_pinned")]);
        assert_eq!(found(256, 0, 129, 127, 0, 129), [("silent", "pool_pinned")]);
        assert_eq!(found(256, 0, 120, 136, 0, 120), [("silent", "pool_granted")]);
        assert_eq!(found(256, 64, 0, 192, 0, 0), [("slow", "pool_granted")]);
        assert_eq!(found(256, 65, 0, 191, 0, 0), []);
        assert_eq!(found(256, 192, 0, 0, 64, 0), [("slow", "pool_quarantined")]);
        assert_eq!(found(256, 0, 0, 0, 256, 0), [("silent", "pool_quarantined")]);
    }

    #[test]
    fn a_pool_that_is_not_in_memory_is_found() {
        assert_eq!(found(0, 256, 0, 0, 0, 0), [("silent", "pool_not_present")]);
        assert_eq!(found(255, 256, 0, 0, 0, 0), [("note", "pool_not_present")]);
    }

    #[test]
    fn a_server_that_knows_as_many_domains_as_it_can_is_found() {
        for (domains, names) in [(1023, vec![]), (1024, vec!["domains_full"])] {
            let mut report = Report::default();
            let status = json!({"domains": domains, "limits": {"domains": 1024}});
            check(Path::new("/k.sock"), &status, &mut report);
            let found: Vec<_> = report.findings.iter().map(|finding| finding.name).collect();
            assert_eq!(found, names);
        }
    }

    /// A server of another version says less, or says it otherwise.
    #[test]
    fn what_a_server_does_not_say_is_no_finding() {
        for status in [
            json!({}),
            json!({"pool": {}, "clients": 7, "binding": [], "limits": null}),
        ] {
            let mut report = Report::default();
            check(Path::new("/k.sock"), &status, &mut report);
            assert!(report.findings.is_empty());
        }
    }
}
