//! Messages of the pool's socket.

use crate::input::Input;
use holdfast_pool::protocol::{ANSWER_LEN, Answer, REQUEST_LEN, Request};

/// Decodes bytes as a request and as an answer, as they are and with the head of one.
pub fn run(bytes: &[u8]) {
    request(bytes);
    answer(bytes);
    let mut input = Input::new(bytes);
    let kind = input.u8();
    let mut message = Request::Status.encode();
    message[6] = kind;
    over(&mut message[8..], input.rest());
    request(&message);
    let mut message = Answer::default().encode();
    over(&mut message[8..], &bytes[bytes.len().min(1)..]);
    answer(&message);
}

fn over(message: &mut [u8], bytes: &[u8]) {
    let len = bytes.len().min(message.len());
    message[..len].copy_from_slice(&bytes[..len]);
}

fn request(bytes: &[u8]) {
    if let Some(request) = Request::decode(bytes) {
        assert_eq!(bytes.len(), REQUEST_LEN);
        assert_eq!(request.encode()[..], *bytes, "{request:?}");
        let _ = format!("{request:?}");
    }
}

fn answer(bytes: &[u8]) {
    if let Some(answer) = Answer::decode(bytes) {
        assert_eq!(bytes.len(), ANSWER_LEN);
        let _ = answer.text();
        // Bytes that mean nothing are not kept, the others are.
        assert_eq!(Answer::decode(&answer.encode()), Some(answer));
    }
}
