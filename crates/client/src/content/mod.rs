//! What objects consist of: the bytes of files, the rights to them, the paths to them.

pub mod abandoned;
pub(crate) mod acl;
pub(crate) mod close;
pub(crate) mod cow;
pub(crate) mod data;
pub(crate) mod durable;
pub(crate) mod file;
pub(crate) mod in_place;
pub(crate) mod lending;
pub(crate) mod lent;
pub(crate) mod perm;
pub(crate) mod pin;
pub(crate) mod pins;
pub(crate) mod ranges;
pub(crate) mod source;
pub(crate) mod strict;
