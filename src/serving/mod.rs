//! From a validated request to a stream of text, and back.
