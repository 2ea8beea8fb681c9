//! Framing of a response's end. The HTTP library frames every streamed body in chunks, which HTTP/1.0 clients do not know. For them, a body
//! without a length ends with the connection (RFC 9112, sections 6.1 and 6.3).

use std::rc::Rc;

use actix_http::{ConnectionType, RequestHead};
use actix_web::HttpResponse;
use actix_web::body::{BodySize, MessageBody};
use actix_web::http::{Version, header};

use super::connection::{ActiveRequest, ConnectionWatch};

/// The framing that a request permits for its response.
pub struct Framing {
    /// The client accepts chunked transfer coding.
    takes_chunks: bool,
    /// The connection cannot be reused after the response.
    closes: bool,
    /// Set if the client speaks HTTP/1.0.
    old: Option<Rc<ConnectionWatch>>,
}

impl Framing {
    /// Derives the framing from a request's head. `busy` is the active request of the connection.
    pub fn of(head: &RequestHead, busy: Option<&ActiveRequest>) -> Self {
        let is_old = head.version < Version::HTTP_11;
        // After a WebSocket upgrade request, the library writes no chunks but still announces them.
        let is_socket = |value: &header::HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"websocket");
        let asks_socket = head.headers().get_all(header::UPGRADE).any(is_socket);
        Self {
            takes_chunks: !is_old && !asks_socket,
            closes: head.connection_type() != ConnectionType::KeepAlive,
            old: busy.filter(|_| is_old).map(ActiveRequest::watch),
        }
    }

    /// Frames a response. One with a known length keeps the connection open if the request allows it.
    pub fn fit<B: MessageBody>(&self, response: &mut HttpResponse<B>) {
        let is_endless = response.body().size() == BodySize::Stream && !self.takes_chunks;
        let head = response.head_mut();
        // The library reuses heads and leaves an earlier response's version in them, which must not close the connection.
        head.version = Version::HTTP_11;
        head.no_chunking(is_endless);
        if self.closes || is_endless || head.connection_type() == ConnectionType::Close {
            head.set_connection_type(ConnectionType::Close);
            self.old.iter().for_each(|watch| watch.say_close());
        }
    }
}

#[cfg(test)]
mod tests {
    use actix_web::body::BodyStream;
    use actix_web::body::BoxBody;
    use bytes::Bytes;
    use futures_util::stream;

    use super::*;

    /// Returns whether a response is chunked and whether its connection closes.
    fn framed(version: Version, connection: Option<ConnectionType>, upgrade: bool, is_streamed: bool) -> (bool, bool) {
        let mut head = RequestHead::default();
        head.version = version;
        connection.into_iter().for_each(|connection| head.set_connection_type(connection));
        if upgrade {
            head.headers.insert(header::UPGRADE, header::HeaderValue::from_static("websocket"));
        }
        let stream = stream::empty::<Result<Bytes, std::io::Error>>();
        let body = if is_streamed { BoxBody::new(BodyStream::new(stream)) } else { BoxBody::new("whole") };
        let mut response = HttpResponse::Ok().finish().set_body(body);
        // The state in which a response to an HTTP/1.0 client leaves the head.
        response.head_mut().version = Version::HTTP_10;
        Framing::of(&head, None).fit(&mut response);
        (response.head().chunked(), response.head().connection_type() == ConnectionType::Close)
    }

    #[test]
    fn a_streamed_body_ends_with_the_connection_where_chunks_are_not_known() {
        use ConnectionType::{Close, KeepAlive, Upgrade};
        for connection in [None, Some(Close), Some(KeepAlive)] {
            assert_eq!(framed(Version::HTTP_10, connection, false, true), (false, true));
            assert_eq!(framed(Version::HTTP_11, connection, false, true), (true, connection == Some(Close)));
            // With a known length, the client decides whether the connection closes.
            assert_eq!(framed(Version::HTTP_10, connection, false, false).1, connection != Some(KeepAlive));
            assert_eq!(framed(Version::HTTP_11, connection, false, false).1, connection == Some(Close));
        }
        assert_eq!(framed(Version::HTTP_11, Some(Upgrade), true, true), (false, true));
        assert!(framed(Version::HTTP_11, Some(Upgrade), true, false).1);
    }
}
