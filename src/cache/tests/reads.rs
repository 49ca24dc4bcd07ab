//! Checks of a reader that need no second thread: whose domain, and whose boot.

use super::*;

#[test]
fn a_reader_takes_no_object_of_another_domain_and_nothing_of_another_boot() {
    let mut rig = Rig::new(16);
    let mut peer = rig.engine(1, &[ObjectKind::Full]);
    rig.put_chain(&peer, 1, 2);
    let (domain, _) = rig.core.registry.find(&rig.seed).unwrap();
    let ids = [0, 1].map(|chunk| ObjectId {
        key: key(1, chunk, CHUNK),
        group: 0,
    });
    let request = parts(rig.seed, 3, 0, &ids);
    let frames = rig.core.pool.frames();
    let mut ask = |domain, is_current| {
        let reader = rig.core.index.reader();
        let found = local::retrieve(&reader, domain, u64::MAX, &request, &mut peer.words, || {
            is_current
        });
        let (found, shortened) = found.unwrap();
        assert!(!shortened);
        let pinned = rig.core.slabs.pinned_by(peer.id.slab(), frames).len();
        peer.words.release(found.pin);
        (
            found
                .locations
                .iter()
                .filter(|place| place.incarnation != 0)
                .count(),
            pinned,
        )
    };
    assert_eq!(ask(domain, true), (2, 2));
    assert_eq!(ask(domain + 1, true), (0, 0), "the records carry another number");
    assert_eq!(
        ask(domain, false),
        (0, 0),
        "the server that it belonged to is gone"
    );
    assert_eq!(ask(domain, true), (2, 2));
}
