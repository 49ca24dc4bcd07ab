//! Python bindings of the Kvasir client.
