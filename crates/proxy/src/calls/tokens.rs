//! Descriptors of pool files in messages.

use super::{Call, Reply};
use crate::connection;
use holdfast_client::served::wire::Note;
use holdfast_client::{Error, Result};
use rustix::fd::AsFd;

impl Call<'_> {
    pub(super) fn send_token(&self) -> Result<Reply> {
        let tokens = &self.member.shared.tokens;
        let (token, key) = tokens.make(self.client, self.ofd(0)?)?;
        let sent = connection::send(self.member, &Note::Object.encode(), &[token.as_fd()]);
        drop(token);
        if sent.is_err() {
            tokens.settle(self.client, key)?;
            return Err(Error::TableFull);
        }
        Ok(Reply::number(key))
    }

    /// Whoever has a token knows its key, and nobody else does.
    pub(super) fn receive_token(&self) -> Result<Reply> {
        let ofd = self.client.receive(self.arg(0)).ok_or(Error::NotFound)?;
        self.member.knows_more();
        let handle = self.member.hold(self.client, ofd)?;
        Ok(Reply::number(handle.into()))
    }

    pub(super) fn settle_token(&self) -> Result<Reply> {
        let tokens = &self.member.shared.tokens;
        Reply::done(tokens.settle(self.client, self.arg(0)))
    }
}
