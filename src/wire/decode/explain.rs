//! What a frame seems to be that is no request: for those who write a client.

use super::{LIMITS, fb};
use crate::wire::PREFIX_BYTES;

/// What is wrong with a frame that [`super::decode_request`] refuses, if it is one of the usual mistakes: what was expected,
/// and what was found.
pub fn explain_request(frame: &[u8]) -> Option<(&'static str, String)> {
    let rest = frame.get(PREFIX_BYTES..)?;
    let as_request = flatbuffers::size_prefixed_root_with_opts::<fb::Request>(&LIMITS, frame);
    if let Ok(request) = &as_request
        && request.body_type() != fb::RequestBody::NONE
    {
        return None;
    }
    let bare = flatbuffers::size_prefixed_root_with_opts::<fb::Hello>(&LIMITS, frame);
    let bare = bare.or_else(|_| flatbuffers::root_with_opts::<fb::Hello>(&LIMITS, rest));
    if bare.is_ok_and(|hello| hello.protocol_version() != 0 && hello.name().is_some()) {
        return Some((
            "the table Request, the root_type of schema/request.fbs, with a Hello in its body",
            "a table Hello without a root".into(),
        ));
    }
    if as_request.is_ok() {
        return Some((
            "a body, which needs both fields of the union: body_type and body",
            "body_type 0 (NONE)".into(),
        ));
    }
    if flatbuffers::root_with_opts::<fb::Request>(&LIMITS, rest).is_ok() {
        return Some((
            "a size-prefixed flatbuffer, in which alignment counts from the length",
            "one in which it counts from the byte behind the length".into(),
        ));
    }
    if flatbuffers::size_prefixed_root_with_opts::<fb::Reply>(&LIMITS, frame)
        .is_ok_and(|reply| reply.body_type() != fb::ReplyBody::NONE)
    {
        return Some(("the table Request", "a table Reply, which servers send".into()));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::GrantRequest;
    use crate::wire::{Encoder, Reply, Request};

    #[test]
    fn usual_mistakes_have_names() {
        let mut builder = flatbuffers::FlatBufferBuilder::new();
        let name = builder.create_string("a client");
        let args = fb::HelloArgs {
            protocol_version: 2,
            name: Some(name),
            ..Default::default()
        };
        let hello = fb::Hello::create(&mut builder, &args);
        builder.finish_size_prefixed(hello, None);
        let (expected, found) = explain_request(builder.finished_data()).unwrap();
        assert!(
            expected.contains("root_type") && found.contains("Hello"),
            "{expected}, {found}"
        );

        let mut encoder = Encoder::new();
        let reply = encoder.reply(1, &Reply::Status { json: "{}".into() }).unwrap();
        assert!(explain_request(reply).is_some());
        let good = encoder.request(1, &Request::Grant(GrantRequest::of(1))).unwrap();
        assert_eq!(explain_request(good), None);
        assert_eq!(explain_request(&[]), None);
    }
}
